-- Gives manually pushed bodies an id in place. ARGV per message: the stored body, new body. Returns their number.
local count = 0
for at = 1, #ARGV, 2 do
    for _, list in ipairs({MAIN, LANE, FAILED}) do
        local place = redis.call('LPOS', list, ARGV[at], 'RANK', -1)
        if place then
            redis.call('LSET', list, place, ARGV[at + 1])
            redis.call('HSETNX', IDS, id_of(ARGV[at + 1]),
                meta_text(list == FAILED and 'deP' or 'dec', whole(due_now), 0, nil, ''))
            count = count + 1
            break
        end
    end
end
return {'OK', count}
