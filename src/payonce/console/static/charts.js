// Draws the charts of a page from the data in their elements, and updates them with every sample of the stream.
"use strict";
if (window.uPlot) document.querySelectorAll("[data-charts]").forEach((box) => {
  const HEIGHT_PX = 150;
  const colour = (tone) => getComputedStyle(document.documentElement).getPropertyValue(`--${tone}`).trim();
  const plots = [];

  const short = (value) => value >= 1e12 ? `${value / 1e12}T` : value >= 1e9 ? `${value / 1e9}G` : value >= 1e6 ? `${value / 1e6}M` : value >= 1e3 ? `${value / 1e3}k` : `${value}`;
  const axis = () => ({
    stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false },
    font: "11px system-ui, sans-serif",
  });

  const daily = box.dataset.step === "day";
  const monthly = box.dataset.step === "month";
  const label = (at) => monthly ? moment(at).slice(0, 7) : daily ? moment(at).slice(5, 10) : moment(at).slice(11, 16);
  // Months differ in length: ticks are at their first days, as many as fit.
  const firsts = (plot) => {
    const every = Math.ceil(plot.data[0].length * 70 / Math.max(plot.width, 1));
    return plot.data[0].filter((_, index) => index % every === 0);
  };
  const moment = (at) => new Date(at * 1e3).toISOString();

  const draw = (figure, data) => {
    const units = Number(figure.dataset.units);
    const place = figure.querySelector(".plot");
    const keys = [...figure.querySelectorAll(".key")];
    place.replaceChildren();
    const options = {
      width: place.clientWidth, height: HEIGHT_PX, legend: { show: false }, padding: [8, 16, 0, 0],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
      cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high || 0, 1) * 1.05] } },
      series: [{}, ...keys.map((key) => ({
        label: key.textContent, stroke: colour(key.dataset.tone), width: 1.5, spanGaps: false, points: { show: false },
      }))],
      axes: [
        { ...axis(), space: 70, size: 26, values: (_, ticks) => ticks.map(label),
          ...(monthly ? { splits: firsts } : daily ? { incrs: [1, 2, 5, 7, 14, 30].map((days) => days * 86400) } : {}) },
        { ...axis(), size: 44, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6, 2e6, 5e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15],
          values: (_, ticks) => ticks.map((value) => short(value / units)) },
      ],
      hooks: { setCursor: [(plot) => keys.forEach((key, index) => {
        const at = plot.cursor.idx;
        const value = at === null || at === undefined ? null : plot.data[index + 1][at];
        key.dataset.value = value === null || value === undefined ? "" : (units === 1 ? Math.round(value) : value / units).toLocaleString("en");
      })] },
    };
    const rows = (found) => [found.at, ...keys.map((key) => found[key.dataset.column])];
    const plot = new uPlot(options, rows(data), place);
    plots.push({ plot, place, rows });
  };

  const data = JSON.parse(box.dataset.charts);
  box.querySelectorAll("[data-chart]").forEach((figure) => draw(figure, data));
  // The stream has minutes only; daily and monthly charts stay as loaded.
  if (!daily && !monthly) document.body.addEventListener("sample", (event) => {
    const found = JSON.parse(event.detail);
    plots.forEach(({ plot, rows }) => plot.setData(rows(found)));
  });
  new ResizeObserver(() => plots.forEach(({ plot, place }) => {
    if (place.clientWidth) plot.setSize({ width: place.clientWidth, height: HEIGHT_PX });
  })).observe(box);
});
