"""The wire contract, version 1: key names, requests, events. Imports nothing of the rest of Headrace."""

from .events import (
    Delta,
    Done,
    ErrorInfo,
    Event,
    EventError,
    FinishReason,
    TokenLogprobs,
    Usage,
    decode_event,
    encode_event,
)
from .keys import GROUP, LANES, PRIORITIES, Keys, Priority, lane_of
from .request import Message, Request, RequestError, decode_request, encode_request, make_request

__all__ = [
    "GROUP",
    "LANES",
    "PRIORITIES",
    "Delta",
    "Done",
    "ErrorInfo",
    "Event",
    "EventError",
    "FinishReason",
    "Keys",
    "Message",
    "Priority",
    "Request",
    "RequestError",
    "TokenLogprobs",
    "Usage",
    "decode_event",
    "decode_request",
    "encode_event",
    "encode_request",
    "lane_of",
    "make_request",
]
