// One round of a client by franz-go: SERVERS TOPIC GROUP, as test_client_versions.py asks for it.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const (
	partitions = 3
	records    = 30
	firstMs    = 1600000000000
	bound      = 60 * time.Second
)

func main() {
	servers, topic, group := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	bounded, cancel := context.WithTimeout(context.Background(), 2*bound)
	defer cancel()
	produce(bounded, servers, topic, 0, records/2, kgo.NoCompression())
	produce(bounded, servers, topic, records/2, records, kgo.GzipCompression())

	reader := client(kgo.SeedBrokers(servers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	read(bounded, reader, "read")
	offsets(bounded, reader, topic, firstMs+records/2, "at")
	offsets(bounded, reader, topic, -1, "end")
	reader.Close()

	member := client(
		kgo.SeedBrokers(servers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup(group), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	read(bounded, member, "member")
	check(member.CommitUncommittedOffsets(bounded))
	committed(bounded, member, topic, group)
	member.Close()
}

func client(options ...kgo.Opt) *kgo.Client {
	made, err := kgo.NewClient(options...)
	check(err)
	return made
}

func produce(bounded context.Context, servers []string, topic string, from, to int, codec kgo.CompressionCodec) {
	producer := client(
		kgo.SeedBrokers(servers...), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec), kgo.ProducerLinger(20*time.Millisecond),
	)
	for number := from; number < to; number++ {
		record := &kgo.Record{
			Topic: topic, Partition: int32(number % partitions), Value: []byte(fmt.Sprint(number)),
			Timestamp: time.UnixMilli(int64(firstMs + number)),
		}
		producer.Produce(bounded, record, func(written *kgo.Record, err error) {
			check(err)
			fmt.Println("produced", written.Partition, written.Offset, string(written.Value))
		})
	}
	check(producer.Flush(bounded))
	producer.Close()
}

func read(bounded context.Context, from *kgo.Client, kind string) {
	for count := 0; count < records; {
		fetches := from.PollFetches(bounded)
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(kind, record.Partition, record.Offset, string(record.Value))
			count++
		})
	}
}

func offsets(bounded context.Context, from *kgo.Client, topic string, timestamp int64, kind string) {
	request := kmsg.NewPtrListOffsetsRequest()
	request.ReplicaID = -1
	asked := kmsg.NewListOffsetsRequestTopic()
	asked.Topic = topic
	for index := int32(0); index < partitions; index++ {
		partition := kmsg.NewListOffsetsRequestTopicPartition()
		partition.Partition, partition.Timestamp = index, timestamp
		asked.Partitions = append(asked.Partitions, partition)
	}
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(bounded, from)
	check(err)
	for _, partition := range response.Topics[0].Partitions {
		fmt.Println(kind, partition.Partition, partition.Offset)
	}
}

func committed(bounded context.Context, from *kgo.Client, topic, group string) {
	request := kmsg.NewPtrOffsetFetchRequest()
	request.Group = group
	asked := kmsg.NewOffsetFetchRequestTopic()
	asked.Topic = topic
	for index := int32(0); index < partitions; index++ {
		asked.Partitions = append(asked.Partitions, index)
	}
	request.Topics = append(request.Topics, asked)
	response, err := request.RequestWith(bounded, from)
	check(err)
	for _, partition := range response.Topics[0].Partitions {
		fmt.Println("committed", partition.Partition, partition.Offset)
	}
}

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}
