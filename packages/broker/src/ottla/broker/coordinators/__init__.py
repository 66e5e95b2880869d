"""The shared parts of all coordinators: states of the partitions of an internal topic.

A coordinator (of groups, of transactions) hosts one state for each partition of its topic that this broker
leads. `coordinator_state.py` declares the state and its records, `internal_topic_log.py` the log they are in.
`runtime.py` follows leadership, `coordinator_partitions.py` holds the partitions led here, `loading.py`
rebuilds a state from the log, `record_writer.py` appends records and replays them once they are committed.
`timer_task.py` fires the deadlines of keys, `deadline_queue.py` orders them. `coordinator_partitions.py` also
says which partition has a key.
"""

__all__: list[str] = []
