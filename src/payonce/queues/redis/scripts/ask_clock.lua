-- Returns the due clock's time in microseconds.
return {'OK', string.format('%.0f', due_now)}
