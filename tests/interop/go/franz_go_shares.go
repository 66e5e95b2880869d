// A member of a share group by franz-go: SERVERS GROUP TOPIC MODE COUNT, with the lines of ShareMember.java.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const bound = 150 * time.Second

func main() {
	servers, group, topic, isExplicit := os.Args[1], os.Args[2], os.Args[3], os.Args[4] == "explicit"
	wanted, err := strconv.Atoi(os.Args[5])
	check(err)
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...), kgo.ShareGroup(group), kgo.ConsumeTopics(topic),
		kgo.ShareAckCallback(func(_ *kgo.Client, results kgo.ShareAckResults) {
			for _, result := range results {
				check(result.Err)
			}
		}),
	)
	check(err)
	bounded, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	fmt.Println("ready")
	accepted := 0
	for accepted < wanted {
		fetches := client.PollFetches(bounded)
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println("read", record.Partition, record.Offset, record.DeliveryCount())
			if isExplicit && record.Offset%2 == 0 && record.DeliveryCount() == 1 {
				record.Ack(kgo.AckRelease)
				return
			}
			if isExplicit {
				record.Ack(kgo.AckAccept)
			}
			accepted++
		})
	}
	client.MarkAcks(kgo.AckAccept)
	check(client.FlushAcks(bounded))
	client.Close()
	fmt.Println("accepted", accepted)
}

func check(err error) {
	if err != nil {
		fmt.Println("failed", err)
		os.Exit(1)
	}
}
