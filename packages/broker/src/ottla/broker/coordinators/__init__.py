"""What every coordinator shares: the states of its partitions of an internal topic.

A coordinator (of groups, of transactions) hosts one state for each partition of its topic that this broker
leads. `state.py` says what a state is, `loading.py` rebuilds it from the log, `writing.py` appends records
and replays them once they are committed, `hosted.py` follows leadership, `timers.py` keeps its deadlines.
"""
