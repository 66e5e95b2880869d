// Writes the batches that test_drawn_records.py prints, by franz-go: SERVERS TOPIC.
package main

import (
	"bufio"
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

var codecs = map[string]kgo.CompressionCodec{
	"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
	"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

func main() {
	servers, topic := os.Args[1], os.Args[2]
	bounded, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	written := 0
	var producer *kgo.Client
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		words := strings.Split(lines.Text(), " ")
		if words[0] == "batch" {
			end(bounded, producer)
			producer = begin(servers, words[1])
			continue
		}
		producer.Produce(bounded, recordOf(topic, words), func(_ *kgo.Record, err error) {
			check(err)
			written++
		})
	}
	check(lines.Err())
	end(bounded, producer)
	fmt.Println("written", written)
}

func begin(servers, codec string) *kgo.Client {
	producer, err := kgo.NewClient(
		kgo.SeedBrokers(servers), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codecs[codec]), kgo.ProducerLinger(10*time.Second),
	)
	check(err)
	return producer
}

func end(bounded context.Context, producer *kgo.Client) {
	if producer != nil {
		check(producer.Flush(bounded))
		producer.Close()
	}
}

func recordOf(topic string, words []string) *kgo.Record {
	timestamp, err := strconv.ParseInt(words[0], 10, 64)
	check(err)
	record := &kgo.Record{
		Topic: topic, Timestamp: time.UnixMilli(timestamp), Key: bytesOf(words[1]), Value: bytesOf(words[2]),
	}
	for at := 3; at < len(words); at += 2 {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: string(bytesOf(words[at])), Value: bytesOf(words[at+1])})
	}
	return record
}

func bytesOf(word string) []byte {
	if word == "-" {
		return nil
	}
	decoded, err := hex.DecodeString(word[1:])
	check(err)
	if decoded == nil {
		decoded = []byte{}
	}
	return decoded
}

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}
