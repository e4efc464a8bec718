"""``python tests/chaos/fuzz_messages.py -max_total_time=SECONDS``: the decoders, led on by coverage.

Outside pytest: it needs ``atheris``. Whatever comes, a decoder answers with a message or with its own error,
and what it accepts can be said again, in the same bytes.
"""

import sys

import atheris

with atheris.instrument_imports():
    from headrace.clients.protocol import (
        EventError,
        RequestError,
        decode_event,
        decode_request,
        encode_event,
        encode_request,
    )


def try_to_decode(data: bytes) -> None:
    try:
        request = decode_request(data)
    except RequestError:
        pass
    else:
        said = encode_request(request)
        assert encode_request(decode_request(said)) == said
    try:
        event = decode_event(data)
    except EventError:
        pass
    else:
        if event is not None:
            said = encode_event(event)
            again = decode_event(said)
            assert again is not None
            assert encode_event(again) == said


if __name__ == "__main__":
    atheris.Setup(sys.argv, try_to_decode)
    atheris.Fuzz()
