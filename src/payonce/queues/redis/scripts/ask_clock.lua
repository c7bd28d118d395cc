-- Answers with what the clock by which messages fall due says, in microseconds.
return {'OK', string.format('%.0f', due_now)}
