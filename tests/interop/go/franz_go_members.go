// Members of one group by franz-go, of both protocols: SERVERS GROUP TOPIC. They are started and stopped, and
// print their events, as tests/interop/python/hosted_members.py says.
package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	batch     = 25
	pollTime  = 50 * time.Millisecond
	heartbeat = 300 * time.Millisecond
	// Releases before 1.22 have the consumer protocol behind this key; the later ones still know it.
	optIn = "opt_in_kafka_next_gen_balancer_beta"
)

var printing sync.Mutex

type member struct {
	name, topic string
	isOver      atomic.Bool
	lock        sync.Mutex
	positions   map[int32]int64
	owned       []int32
	taken       int
}

func main() {
	members := map[string]*member{}
	var running sync.WaitGroup
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Fields(lines.Text())
		if words[0] == "stop" {
			members[words[1]].isOver.Store(true)
			continue
		}
		started := &member{name: words[1], topic: os.Args[3], positions: map[int32]int64{}}
		members[words[1]] = started
		running.Add(1)
		go func() {
			defer running.Done()
			started.work(os.Args[1], os.Args[2], words[2])
		}()
	}
	for _, left := range members {
		left.isOver.Store(true)
	}
	running.Wait()
}

func (m *member) work(servers, group, protocol string) {
	client, err := kgo.NewClient(m.options(servers, group, protocol)...)
	if err != nil {
		m.say("failed", err)
		return
	}
	for !m.isOver.Load() {
		bounded, cancel := context.WithTimeout(context.Background(), pollTime)
		fetches := client.PollRecords(bounded, batch)
		cancel()
		for _, failed := range fetches.Errors() {
			if failed.Err != context.DeadlineExceeded && !kerr.IsRetriable(failed.Err) {
				fmt.Fprintln(os.Stderr, m.name, "could not fetch:", failed.Err)
			}
		}
		m.lock.Lock()
		fetches.EachRecord(m.take)
		if m.taken >= batch {
			m.commit(client)
		}
		m.lock.Unlock()
		client.AllowRebalance()
	}
	m.lock.Lock()
	m.commit(client)
	m.lock.Unlock()
	client.CloseAllowingRebalance()
	m.say("left")
}

func (m *member) options(servers, group, protocol string) []kgo.Opt {
	ctx := context.Background()
	if protocol == "consumer" {
		ctx = context.WithValue(ctx, optIn, true) //nolint:staticcheck // the library's own key is a string
	}
	return []kgo.Opt{
		kgo.SeedBrokers(strings.Split(servers, ",")...), kgo.ConsumerGroup(group), kgo.ConsumeTopics(m.topic),
		kgo.ClientID(m.name), kgo.WithContext(ctx), kgo.Balancers(kgo.RangeBalancer()), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(heartbeat), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.BlockRebalanceOnPoll(), kgo.OnPartitionsAssigned(m.assigned), kgo.OnPartitionsRevoked(m.revoked),
		kgo.OnPartitionsLost(m.lost),
	}
}

func (m *member) take(record *kgo.Record) {
	m.positions[record.Partition] = record.Offset + 1
	m.taken++
	m.say("read", record.Partition, record.Offset)
}

// commit commits the positions; without an answer they stay uncommitted.
func (m *member) commit(client *kgo.Client) {
	if len(m.positions) == 0 {
		return
	}
	offsets := map[int32]kgo.EpochOffset{}
	for partition, offset := range m.positions {
		offsets[partition] = kgo.EpochOffset{Epoch: -1, Offset: offset}
	}
	bounded, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client.CommitOffsetsSync(bounded, map[string]map[int32]kgo.EpochOffset{m.topic: offsets}, m.committed)
}

func (m *member) committed(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, answer *kmsg.OffsetCommitResponse, err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, m.name, "could not commit:", err)
		return
	}
	for _, topic := range answer.Topics {
		for _, partition := range topic.Partitions {
			if err := kerr.ErrorForCode(partition.ErrorCode); err != nil {
				fmt.Fprintln(os.Stderr, m.name, "could not commit:", err)
				continue
			}
			m.say("committed", partition.Partition, m.positions[partition.Partition])
			delete(m.positions, partition.Partition)
		}
	}
	m.taken = 0
}

func (m *member) assigned(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.owns(append(slices.Clone(m.owned), assigned[m.topic]...))
}

func (m *member) revoked(_ context.Context, client *kgo.Client, revoked map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.commit(client)
	m.without(revoked[m.topic])
}

func (m *member) lost(_ context.Context, _ *kgo.Client, lost map[string][]int32) {
	m.lock.Lock()
	defer m.lock.Unlock()
	m.without(lost[m.topic])
}

func (m *member) without(lost []int32) {
	for _, partition := range lost {
		delete(m.positions, partition)
	}
	m.owns(slices.DeleteFunc(slices.Clone(m.owned), func(partition int32) bool {
		return slices.Contains(lost, partition)
	}))
}

func (m *member) owns(partitions []int32) {
	slices.Sort(partitions)
	m.owned = slices.Compact(partitions)
	words := []any{"owns"}
	for _, partition := range m.owned {
		words = append(words, partition)
	}
	m.say(words...)
}

func (m *member) say(words ...any) {
	printing.Lock()
	defer printing.Unlock()
	fmt.Println(append([]any{monotonicNs(), m.name}, words...)...)
}

// monotonicNs returns the time of a clock that all programs of the machine share.
func monotonicNs() int64 {
	const monotonic = 1
	var now syscall.Timespec
	_, _, _ = syscall.Syscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0)
	return now.Nano()
}
