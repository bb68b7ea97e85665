from minefleet_replay.state.ledger_totals import Amount, Ledger, LedgerAccount, bucket_of


def test_a_fragment_that_was_used_counts_as_trained_whatever_it_left_for() -> None:
    assert bucket_of("stale", uses=1) == "trained"
    assert bucket_of("stale", uses=0) == "expired"
    assert bucket_of("evicted", uses=0) == "evicted"


def test_ledger_stays_balanced_when_fragments_move() -> None:
    ledger = Ledger().added("live", 5).added("live", 3).added("expired", 1).moved("live", "leased", Amount(2, 8))
    assert ledger == Ledger(
        LedgerAccount(appended=3, leased=2, expired=1), LedgerAccount(appended=9, leased=8, expired=1)
    )
    assert ledger.is_balanced
    assert Ledger.from_row(ledger.to_row()) == ledger


def test_ledger_with_a_bucket_below_zero_is_not_balanced() -> None:
    assert not Ledger().moved("live", "trained", Amount(1, 1)).is_balanced
    assert not Ledger().added("live", 2).moved("live", "trained", Amount(1, 3)).is_balanced
