"""An invoice on paper says what the invoice says, whatever is written in it, and the same file every time."""

import builtins
import contextlib
import os
import pickle
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import reportlab
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pypdf import PdfReader

from payonce.kit.money import Amount, asset_of
from payonce.kit.outcomes import Invalid, Unavailable
from payonce.services.billing.subscriptions.pdf.glyphs import Fonts, GlyphRenderer, check_fonts, in_visual_order
from payonce.services.billing.subscriptions.pdf.render import (
    LINES_MAX,
    PARTY_LINES_MAX,
    Kind,
    Party,
    PrintedDocument,
    PrintedLine,
    PrintedNote,
    to_pdf,
)

STEADY = settings(max_examples=25, deadline=None, derandomize=True)
AED, KWD, JPY = asset_of("AED"), asset_of("KWD"), asset_of("JPY")
ISSUED = datetime(2026, 1, 31, 21, 0, tzinfo=UTC)
"""Already February in Dubai."""
EXPLANATION = "Letters that this document's fonts do not have"


def line(text: str = "Basic", minor: int = 2900) -> PrintedLine:
    return PrintedLine(text, Amount(minor, AED), ISSUED, ISSUED + timedelta(days=28))


def invoice(*lines: PrintedLine, credit_minor: int = 0, **changes: Any) -> PrintedDocument:
    lines = lines or (line(),)
    total = Amount.total((each.amount for each in lines), lines[0].amount.asset)
    credit = Amount(credit_minor, total.asset)
    plain = PrintedDocument(
        kind=Kind.INVOICE,
        number="2026-000001",
        issued_at=ISSUED,
        issuer=Party("Nord GmbH", ("Hafenstraße 1", "Köln", "VAT DE 1")),
        customer=Party("Zoë Ångström", ("zoe@example.com",)),
        lines=lines,
        total=total,
        credit=credit,
        due=max(total, Amount.zero(total.asset)) - credit,
        status="Paid on 2026-02-01",
        zone="Asia/Dubai",
    )
    return replace(plain, **changes)


def pages(document: bytes) -> list[str]:
    return [
        page.extract_text().replace("\N{NO-BREAK SPACE}", " ")
        for page in PdfReader(BytesIO(document), strict=True).pages
    ]


def places(document: bytes) -> list[tuple[str, float, float]]:
    """Every text with where it begins, in points from the left and from the bottom."""
    found: list[tuple[str, float, float]] = []

    def note(text: str, _: object, at: list[float], *rest: object) -> None:
        if text:
            found.append((text.strip(), at[4], at[5]))

    for page in PdfReader(BytesIO(document)).pages:
        page.extract_text(visitor_text=note)
    return found


def test_an_invoice_shows_who_owes_whom_what_for_which_time() -> None:
    change = [line("Unused time of Basic", -1812), line("Rest of the period on Pro", 6188)]
    (text,) = pages(to_pdf(invoice(*change, credit_minor=376)))
    for said in (
        "Invoice",
        "2026-000001 · 2026-02-01",
        "Paid on 2026-02-01",
        "Nord GmbH",
        "Hafenstraße 1",
        "Zoë Ångström",
        "Unused time of Basic",
        "2026-02-01 to 2026-03-01",
        "-18.12 AED",
        "Rest of the period on Pro",
        "61.88 AED",
        "Total\n43.76 AED",
        "Paid from credit\n-3.76 AED",
        "Amount due\n40.00 AED",
        "Page 1 of 1",
    ):
        assert said in text, said
    assert EXPLANATION not in text


def test_a_credit_note_names_its_invoice_and_an_invoice_its_credit_notes() -> None:
    note = invoice(line("Trial, given back", 100), kind=Kind.CREDIT_NOTE, number="CN-2026-000007", about="2026-000001")
    (text,) = pages(to_pdf(note))
    assert "Credit note" in text
    assert "CN-2026-000007 · 2026-02-01 · for 2026-000001" in text
    assert "Amount credited\n1.00 AED" in text
    assert "Net" not in text
    listed = PrintedNote("CN-2026-000007", ISSUED, Amount(100, AED), "trial")
    (text,) = pages(to_pdf(invoice(notes=(listed,))))
    assert "Credit note CN-2026-000007: trial\n2026-02-01\n-1.00 AED" in text
    assert "Net after credit notes\n28.00 AED" in text


def test_a_credit_note_says_what_it_leaves_of_its_invoice() -> None:
    before = PrintedNote("CN-2026-000006", ISSUED, Amount(400, AED), "half a day")
    note = invoice(
        line("an outage", 500),
        kind=Kind.CREDIT_NOTE,
        number="CN-2026-000007",
        about="INV-2026-000001",
        about_total=Amount(2900, AED),
        notes=(before,),
        status="Refunded to the visa card ending in 4242",
    )
    (text,) = pages(to_pdf(note))
    for said in (
        "Refunded to the visa card ending in 4242",
        "Amount credited\n5.00 AED",
        "Invoice INV-2026-000001, total\n29.00 AED",
        "Credit note CN-2026-000006: half a day\n2026-02-01\n-4.00 AED",
        "Credit note CN-2026-000007\n2026-02-01\n-5.00 AED",
        "Net after credit notes\n20.00 AED",
    ):
        assert said in text, said


def test_a_paid_invoice_has_nothing_left_to_pay_and_a_void_one_owes_nothing() -> None:
    (paid,) = pages(to_pdf(invoice(credit_minor=900, paid_at=ISSUED)))
    assert "Paid from credit\n-9.00 AED\nPaid on 2026-02-01\n-20.00 AED\nAmount due\n0.00 AED" in paid
    (void,) = pages(to_pdf(invoice(owed=False)))
    assert "Amount due\n0.00 AED" in void
    (credit,) = pages(to_pdf(invoice(line("Unused time of Pro", -6188), line("Basic", 1812), paid_at=ISSUED)))
    assert "Total\n-43.76 AED\nAdded to credit\n43.76 AED\nAmount due\n0.00 AED" in credit


@pytest.mark.parametrize(
    ("amount", "locale", "shown"),
    [
        (Amount(123_456_789, AED), "en", "1,234,567.89 AED"),
        (Amount(123_456_789, AED), "de", "1.234.567,89 AED"),
        (Amount(123_456_789, AED), "fr-FR", "1 234 567,89 AED"),
        (Amount(123_456_789, AED), "ar_AE", "1,234,567.89 AED"),
        (Amount(-1_234, KWD), "en", "-1.234 KWD"),
        (Amount(1_234, JPY), "ja", "1,234 JPY"),
        (Amount(2**63 - 1, AED), "en", "92,233,720,368,547,758.07 AED"),
    ],
)
def test_amounts_are_in_the_manner_of_the_locale_with_the_currencys_decimals(
    amount: Amount, locale: str, shown: str
) -> None:
    document = to_pdf(invoice(PrintedLine("Pro", amount), locale=locale))
    (text,) = pages(document)
    assert shown in text
    assert EXPLANATION not in text
    assert all(x >= 430 for text, x, _ in places(document) if text.endswith(str(amount.asset))), "out of its column"


@pytest.mark.parametrize("count", [1, 31, 32, 33, 34, 100])
def test_many_lines_go_on_over_the_page_and_none_is_lost(count: int) -> None:
    many = [line(f"Line-{number:03}", 100 + number) for number in range(count)]
    texts = pages(to_pdf(invoice(*many)))
    words = [word for text in texts for word in text.split()]
    assert [word for word in words if word.startswith("Line-")] == [f"Line-{number:03}" for number in range(count)]
    for number, text in enumerate(texts, start=1):
        assert text.count("For\nTime\nAmount") == 1
        assert f"Page {number} of {len(texts)}" in text
    assert all(said in texts[-1] for said in ("Total", "Amount due"))
    assert (count < 33) == (len(texts) == 1)


def test_the_same_invoice_is_the_same_file_also_in_another_process() -> None:
    document = to_pdf(invoice(line("Łódź"), line("Ελλάδα")))
    assert to_pdf(invoice(line("Łódź"), line("Ελλάδα"))) == document
    assert to_pdf(invoice(line("Łódź"), line("Ἑλλάς"))) != document
    program = (
        "import pickle, sys; from payonce.services.billing.subscriptions.pdf.render import to_pdf; "
        "sys.stdout.buffer.write(to_pdf(pickle.load(sys.stdin.buffer)))"
    )
    command, known = [sys.executable, "-c", program], pickle.dumps(invoice(line("Łódź"), line("Ελλάδα")))
    surroundings = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    elsewhere = subprocess.run(command, input=known, capture_output=True, check=True, env=surroundings)
    assert elsewhere.stdout == document


def test_two_threads_never_read_one_font_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The font's reader has one position for all documents; reportlab 5.1 fails or mixes letters without turns."""
    from reportlab.pdfgen.canvas import Canvas

    genuine, both_inside = Canvas.save, threading.Barrier(2)
    met: list[bool] = []

    def save(canvas: Canvas) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_inside.wait(timeout=0.2)
            met.append(True)
        genuine(canvas)

    expected = to_pdf(invoice())
    monkeypatch.setattr(Canvas, "save", save)
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(to_pdf, [invoice(), invoice()])) == [expected, expected]
    assert met == []


def test_what_no_font_has_is_marked_explained_and_kept_in_the_properties() -> None:
    document = to_pdf(invoice(customer=Party("สมชาย Dvořák", ("ḥ", "e\N{COMBINING ACUTE ACCENT}clair"))))
    (text,) = pages(document)
    for said in ("◊◊◊◊◊", "Dvořák", "ḥ", "éclair", EXPLANATION):
        assert said in text, said
    properties = PdfReader(BytesIO(document)).metadata
    assert properties is not None
    assert (properties.subject, properties.title) == ("สมชาย Dvořák", "Invoice 2026-000001")


@pytest.mark.parametrize(
    "text",
    [
        "محمد بن راشد",
        "שלום עולם",
        "北京市朝阳区",
        "プロプラン",
        "프로 요금제",
        "Тариф",
        "Ελλάδα",
        "Հայաստան",
        "საქართველო",
    ],
)
def test_the_bundled_fonts_have_the_letters_of_many_countries(text: str) -> None:
    (shown,) = pages(to_pdf(invoice(line(text), customer=Party(text))))
    assert shown.count(text) == 2
    assert EXPLANATION not in shown


def drawn(text: str, base: str | None = None) -> str:
    """The letters from left to right; brackets as they are written, before they are mirrored."""
    return "".join(letter.char for letter in in_visual_order(text, base))


def test_arabic_letters_are_joined_and_placed_from_right_to_left() -> None:
    lettering = GlyphRenderer(Fonts())
    [run] = lettering.runs("محمد", bold=False)
    assert run.glyphs is not None
    forms = "\ufeaa\ufee4\ufea4\ufee3"
    """From left to right: dal at the end of the word, mim and ha in it, mim at its beginning."""
    assert "".join(glyph.char for glyph in run.glyphs) == forms
    [lam_alef] = lettering.runs("لا", bold=False)[0].glyphs or ()
    assert lam_alef.char == "\ufefb", "two letters are one glyph"


def test_marks_of_vowels_stand_above_their_letters_and_take_no_room() -> None:
    lettering = GlyphRenderer(Fonts())
    [run] = lettering.runs("مُحَمَّد", bold=False)
    assert lettering.width("مُحَمَّد", False, 9) == lettering.width("محمد", False, 9)
    assert run.glyphs is not None
    assert sum(1 for glyph in run.glyphs if glyph.advance == 0) >= 3


@pytest.mark.parametrize(
    ("text", "base", "seen"),
    [
        ("شركة ACME", None, "ACME ةكرش"),
        ("ACME شركة 7", None, "ACME ةكرش 7"),
        ("باقة, 2026-01-01 to 2026-02-01", None, "2026-01-01 to 2026-02-01 ,ةقاب"),
        ("هاتف: +971 4 123 4567", None, "+971 4 123 4567 :فتاه"),
        ("סך 1,234.567 KWD", None, "1,234.567 KWD ךס"),
        ("פרו 50%", None, "50% ורפ"),
        ("-5 ورب", "R", "برو -5"),
        ("Dubai.", "R", ".Dubai"),
        ("Dubai.", "L", "Dubai."),
    ],
)
def test_words_of_both_directions_keep_their_order_and_numbers_are_whole(
    text: str, base: str | None, seen: str
) -> None:
    assert drawn(text, base) == seen


@pytest.mark.parametrize(("text", "rtl"), [("شركة (ذ.م.م)", True), ("Dubai (الإمارات)", False), ("שלום [ב]", True)])
def test_brackets_face_what_they_hold(text: str, rtl: bool) -> None:
    """HarfBuzz mirrors those of a run from right to left."""
    brackets = [letter for letter in in_visual_order(text, None) if letter.char in "()[]"]
    assert [letter.rtl for letter in brackets] == [rtl, rtl]
    glyphs = [glyph.char for run in GlyphRenderer(Fonts()).runs(text, bold=False) for glyph in run.glyphs or ()]
    glyphs = [char for char in glyphs if char in "()[]"]
    assert glyphs in (["(", ")"], ["[", "]"])


def test_a_script_is_shaped_with_its_own_rules_beside_others() -> None:
    """A joiner between two letters parts them, and marks stay with the letter that they belong to."""
    lettering = GlyphRenderer(Fonts())
    joined, parted = lettering.runs("هی", bold=False), lettering.runs("ه\N{ZERO WIDTH NON-JOINER}ی", bold=False)
    assert joined != parted
    assert [letter.rtl for letter in in_visual_order("e\u0320 שָלום", None)] == [False] * 3 + [True] * 5
    runs = lettering.runs("Pro 北京 محمد Ж", bold=True)
    assert [run.text.strip() for run in runs] == ["Pro", "北京", "محمد", "Ж"]


@pytest.mark.parametrize("text", ["دبي 2026-01-31 (سبب) ACME", "北京市朝阳区建国路88号" * 9])
def test_lines_hold_all_of_a_text_in_the_order_of_reading(text: str) -> None:
    document = to_pdf(invoice(line(text)))
    shown = "".join("".join(pages(document)).split())
    for word in re.findall(r"[A-Z]{3,}|[\d-]{3,}|[^\W\dA-Z]{3,}", text):
        assert shown.count(word) >= 1, word
    assert all(48 <= x <= 547 for _, x, _ in places(document))


def test_a_name_that_is_cut_says_so() -> None:
    (text,) = pages(to_pdf(invoice(customer=Party("Nord und Söhne " * 30))))
    assert text.count("…") == 1


@STEADY
@given(st.text(max_size=600), st.text(min_size=1, max_size=200))
@example("W" * 600, "W" * 200)
def test_no_text_fails_or_leaves_the_page(text: str, name: str) -> None:
    party = Party(name, (text,) * PARTY_LINES_MAX)
    note = PrintedNote(name, ISSUED, Amount(100, AED), text)
    document = to_pdf(invoice(line(text), issuer=party, customer=party, status=text, number=name, notes=(note,)))
    placed = [(x, y) for _, x, y in places(document)]
    assert [(x, y) for x, y in placed if not (48 <= x <= 547 and 40 <= y <= 794)] == []
    together = "".join(pages(document))
    assert all(said in together for said in ("29.00 AED", "Amount due", "-1.00 AED"))


def test_a_long_word_is_broken_and_a_long_text_is_cut() -> None:
    (text,) = pages(to_pdf(invoice(line("W" * 10_000))))
    assert 400 < text.count("W") < 500
    assert max(map(len, text.split())) < 60


def test_a_font_of_ones_own_is_used() -> None:
    italic = Path(reportlab.__file__).parent / "fonts" / "VeraIt.ttf"
    document = to_pdf(invoice(), Fonts((italic,), (italic,)))
    assert b"BitstreamVeraSans-Oblique" in document
    assert b"DejaVu" not in document
    assert str(italic).encode() not in document
    assert b"DejaVuSans" in to_pdf(invoice(line("محمد")), Fonts((italic,))), "what it lacks is in ours"
    with pytest.raises(Unavailable, match=r"the font .*test_document\.py cannot be read as TrueType"):
        check_fonts(Fonts((italic,), (Path(__file__),)))
    with pytest.raises(Unavailable, match="cannot be read"):
        to_pdf(invoice(), Fonts((Path("nowhere.ttf"),)))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: invoice(total=Amount(2901, AED)), "the lines of 2026-000001 do not add up to its total of 29.01 AED"),
        (lambda: invoice(due=Amount(2800, AED)), "charges 28.00 AED, which is not 29.00 minus 0.00"),
        (lambda: invoice(credit_minor=-1), "minus -0.01 of credit"),
        (lambda: invoice(credit_minor=2901), "charges -0.01 AED"),
        (lambda: invoice(PrintedLine("Pro", Amount(1, AED)), PrintedLine("Pro", Amount(1, KWD))), "convert one first"),
        (lambda: invoice(lines=()), f"has 0 lines and 0 credit notes; a document has 1 to {LINES_MAX}"),
        (lambda: invoice(*[line()] * (LINES_MAX + 1)), f"has {LINES_MAX + 1} lines"),
        (lambda: Party("Nord", ("x",) * (PARTY_LINES_MAX + 1)), "9 lines below 'Nord' are too many"),
        (lambda: to_pdf(invoice(locale="xx_YY_zz")), "is not a known locale"),
        (lambda: to_pdf(invoice(zone="Mars")), "'Mars' is not a known time zone"),
    ],
)
def test_a_document_that_would_not_add_up_is_not_made(build: Any, words: str) -> None:
    with pytest.raises(Invalid, match=words):
        build()


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = builtins.__import__

    def without_reportlab(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("reportlab"):
            raise ImportError(name)
        return genuine(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_reportlab)
    with pytest.raises(Unavailable, match=r"pip install 'payonce\[billing\]'"):
        to_pdf(invoice())
