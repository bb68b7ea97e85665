from minefleet_replay.ledger import Ledger, bucket_of


def test_a_fragment_that_was_used_counts_as_trained_whatever_it_left_for() -> None:
    assert bucket_of("stale", uses=1) == "trained"
    assert bucket_of("stale", uses=0) == "expired"
    assert bucket_of("evicted", uses=0) == "evicted"


def test_moving_fragments_keeps_the_balance() -> None:
    ledger = Ledger().added("live").added("live").added("expired").moved("live", "leased", 2)
    assert ledger == Ledger(appended=3, leased=2, expired=1)
    assert ledger.is_balanced
    assert Ledger.from_row(ledger.to_row()) == ledger


def test_a_bucket_below_zero_is_no_balance() -> None:
    assert not Ledger().moved("live", "trained", 1).is_balanced
