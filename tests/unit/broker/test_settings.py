"""Settings out of range name the field."""

import pytest

from headrace.worker.broker import BrokerSettings
from headrace.worker.broker.control import decode_notice
from headrace.worker.broker.settings import consumer_name


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "a:b"),
        ("name", "x" * 101),
        ("model", "a}b"),
        ("namespace", "a b"),
        ("lease", 0),
        ("lease", float("nan")),
        ("ageing", -1),
        ("timeout", 1e10),
        ("max_attempts", 0),
        ("max_outbox_bytes", 0),
    ],
)
def test_a_setting_out_of_range_is_refused_by_name(field: str, value: object) -> None:
    fields = {"url": "redis://secret@h", "model": "m", "name": "w", field: value}
    with pytest.raises(ValueError, match=field):
        BrokerSettings(**fields)


def test_the_url_with_its_password_is_not_shown() -> None:
    assert "secret" not in repr(BrokerSettings(url="redis://:secret@h", model="m", name="w"))


def test_each_life_of_a_worker_has_a_consumer_name_of_its_own() -> None:
    assert len({consumer_name("w") for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\x91\x01", b"\x01", b"\x91" * 3000, b"\x81\xa1x" + b"y" * 5000]
)
def test_noise_on_the_control_channel_is_no_notice(data: bytes) -> None:
    assert decode_notice(data) == {}
