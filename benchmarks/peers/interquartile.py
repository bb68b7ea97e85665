"""Interquartile mean of scores and its 95 % interval, by rliable's stratified bootstrap.

    python interquartile.py '{"ours": [[seed 1 of case 1, seed 1 of case 2, …], [seed 2, …], …], …}'

Prints {"ours": [mean, lower, upper], …}.
"""

import json
import sys

import numpy as np
from rliable import library, metrics

REPETITIONS = 20_000


def main() -> None:
    scores = {name: np.array(rows) for name, rows in json.loads(sys.argv[1]).items()}
    state = np.random.RandomState(0)
    means, intervals = library.get_interval_estimates(
        scores, lambda rows: np.array([metrics.aggregate_iqm(rows)]), reps=REPETITIONS, random_state=state
    )
    print(json.dumps({name: [float(means[name][0]), *map(float, intervals[name][:, 0])] for name in scores}))


if __name__ == "__main__":
    main()
