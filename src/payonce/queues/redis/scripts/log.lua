-- Writes a line of the job log about maintenance. ARGV: the line without its timestamp.
write_log({ARGV[1]})
return {'OK'}
