// A producer and a member of a group, by franz-go: SERVERS TOPIC GROUP [PROTOCOL]. It does what RidingClient.java
// does; with the protocol "consumer" the coordinator assigns the partitions.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	partitions = 3
	pause      = 10 * time.Millisecond
	bound      = 150 * time.Second
)

func main() {
	servers, topic, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	options := []kgo.Opt{
		kgo.SeedBrokers(servers...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	}
	if len(os.Args) > 4 && os.Args[4] == "consumer" {
		options = append(options, kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer())
	}
	client, err := kgo.NewClient(options...)
	check(err)
	var stopped atomic.Bool
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stopped.Store(true)
	}()
	var written atomic.Int64
	written.Store(-1) // not known yet
	go func() { written.Store(write(client, topic, &stopped)) }()
	read(client, &written)
	check(client.CommitUncommittedOffsets(context.Background()))
	client.Close()
}

func write(client *kgo.Client, topic string, stopped *atomic.Bool) int64 {
	number := int64(0)
	for ; !stopped.Load(); number++ {
		partition := int32(number % partitions)
		record := &kgo.Record{Topic: topic, Partition: partition, Value: []byte(fmt.Sprint(number))}
		bounded, cancel := context.WithTimeout(context.Background(), bound)
		check(client.ProduceSync(bounded, record).FirstErr())
		cancel()
		fmt.Println("wrote", partition, number)
		time.Sleep(pause)
	}
	return number
}

func read(client *kgo.Client, written *atomic.Int64) {
	for count := int64(0); written.Load() < 0 || count < written.Load(); {
		bounded, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		fetches := client.PollFetches(bounded)
		cancel()
		for _, failed := range fetches.Errors() {
			if failed.Err != context.DeadlineExceeded { // that one is our own
				check(failed.Err)
			}
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println("read", record.Partition, string(record.Value))
			count++
		})
	}
}

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}
