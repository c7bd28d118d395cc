"""Queues on Redis: keys that operators can type, and one script per step."""

from payonce.queues.redis.admin import RedisAdmin
from payonce.queues.redis.feed import RedisFeed
from payonce.queues.redis.pull import RedisQueue
from payonce.queues.redis.refill import refill
from payonce.queues.redis.relay import RedisRelay
from payonce.queues.redis.store import RedisStore

__all__ = ["RedisAdmin", "RedisFeed", "RedisQueue", "RedisRelay", "RedisStore", "refill"]
