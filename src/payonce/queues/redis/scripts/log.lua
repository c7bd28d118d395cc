-- A line of the job log on what moves no message by itself. ARGV: the line without its beginning.
write_log({ARGV[1]})
return {'OK'}
