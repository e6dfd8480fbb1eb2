"""Guesses of the login's secret: how many are heard, from whom, and who waits for it."""

from tilescope_dashboard.serving.login import FIRST, FREE, LONGEST, MOST, WITHIN, Attempts, Login


class Clock:
    """Seconds, which go on when they are told to."""

    def __init__(self) -> None:
        self.seconds = 10_000.0

    def __call__(self) -> float:
        return self.seconds


def test_slips_are_free_then_waits_double() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    for _ in range(FREE):
        assert attempts.wait("192.0.2.7") == 0
        attempts.wrong("192.0.2.7")
    waits = []
    for _ in range(9):
        waits.append(attempts.wait("192.0.2.7"))
        clock.seconds += waits[-1]
        assert attempts.wait("192.0.2.7") == 0
        attempts.wrong("192.0.2.7")
    assert waits == [min(FIRST * 2**n, LONGEST) for n in range(9)]
    # An hour later it is forgotten, and another address has never been concerned.
    assert attempts.wait("192.0.2.8") == 0
    clock.seconds += 3600
    assert attempts.wait("192.0.2.7") == 0


def test_many_addresses_are_bounded_but_not_the_owner() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    attempts.right("192.0.2.200")
    for n in range(1000):
        if attempts.wait(f"198.51.100.{n}") == 0:
            attempts.wrong(f"198.51.100.{n}")
    assert len(attempts._known) == MOST + 1
    assert attempts.wait("203.0.113.1") == WITHIN
    assert attempts.wait("192.0.2.200") == 0
    clock.seconds += WITHIN
    assert attempts.wait("203.0.113.1") == 0


def test_ipv6_network_is_one_address() -> None:
    attempts = Attempts(Clock())
    for n in range(FREE):
        attempts.wrong(f"2001:db8::{n}")
    assert attempts.wait("2001:db8::ffff") > 0
    assert attempts.wait("2001:db8:0:1::1") == 0
    for _ in range(FREE):
        attempts.wrong("::ffff:192.0.2.7")
    assert attempts.wait("192.0.2.7") > 0
    assert attempts.wait("") == 0


def test_a_password_waits_for_its_turn_and_a_token_does_not() -> None:
    for chosen in (True, False):
        login = Login("the right one", "name", chosen=chosen)
        assert [login.weigh("wrong", "192.0.2.7") for _ in range(FREE)] == [0] * FREE
        assert login.weigh("wrong", "192.0.2.7") == FIRST
        # Else the wait would tell a right guess from a wrong one.
        assert login.weigh("the right one", "192.0.2.7") == (FIRST if chosen else None)
        assert login.weigh("the right one", "192.0.2.8") is None
        assert login.weigh("\ud800", "192.0.2.9") == 0
