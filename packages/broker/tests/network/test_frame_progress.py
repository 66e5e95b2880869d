from dataclasses import dataclass

from ottla.broker.network.frame_progress import FrameProgress


@dataclass(eq=False)
class Receiving:
    name: str
    kept_bytes: int = 0
    last_active_s: float = 0.0
    is_receiving: bool = True

    def receive(self, count: int, now_s: float) -> None:
        self.kept_bytes += count
        self.last_active_s = now_s


def names(connections: list[Receiving]) -> list[str]:
    return [one.name for one in connections]


def test_a_frame_without_progress_for_half_a_minute_is_stuck() -> None:
    progress: FrameProgress[Receiving] = FrameProgress()
    stuck, slow, idle = Receiving("stuck", 100), Receiving("slow", 100), Receiving("idle")
    found: dict[float, list[str]] = {}

    for now_s in range(100):
        if now_s % 25 == 0:
            slow.receive(1, now_s)
        found[now_s] = names(progress.look(now_s, [stuck, slow, idle]))

    assert [now_s for now_s, names in found.items() if names == ["stuck"]] == list(range(30, 100))
    assert [names for names in found.values() if "slow" in names or "idle" in names] == []


def test_a_frame_that_waits_for_the_broker_is_not_stuck() -> None:
    progress: FrameProgress[Receiving] = FrameProgress()
    waiting = Receiving("waiting", 100, is_receiving=False)

    assert [progress.look(now_s, [waiting]) for now_s in range(100)] == [[]] * 100


def test_time_in_which_the_broker_did_not_run_does_not_count() -> None:
    progress: FrameProgress[Receiving] = FrameProgress()
    one = Receiving("one", 100)
    for now_s in range(10):
        progress.look(now_s, [one])

    assert progress.look(3600, [one]) == []


def test_those_that_hold_much_and_receive_little_come_first() -> None:
    progress: FrameProgress[Receiving] = FrameProgress()
    mega = 1_000_000
    stuck = Receiving("stuck", 90 * mega)
    trickling = Receiving("trickling", 90 * mega)
    slow = Receiving("a slow link", 1 * mega)
    fast = Receiving("fast", 1 * mega)
    waiting = Receiving("waits for the broker", 50 * mega, is_receiving=False)
    everyone = [waiting, fast, slow, trickling, stuck]
    for now_s in range(1, 6):
        trickling.receive(1000, now_s)
        slow.receive(100_000, now_s)
        fast.receive(0, now_s)  # frame after frame
        progress.look(now_s, everyone)
    new = [Receiving("new and small", 1000), Receiving("new and large", 8 * mega), Receiving("nothing")]

    assert names(progress.slowest_first([*new, *everyone])) == [
        "stuck", "trickling", "a slow link", "new and large", "fast", "new and small", "waits for the broker",
    ]  # fmt: skip


def test_a_connection_between_two_frames_is_not_remembered() -> None:
    progress: FrameProgress[Receiving] = FrameProgress()
    one = Receiving("one", 100)
    for now_s in range(20):
        progress.look(now_s, [one])
    one.kept_bytes = 0
    progress.look(20, [one])
    one.kept_bytes = 50

    assert [progress.look(now_s, [one]) for now_s in range(21, 50)] == [[]] * 29
