// The cases of test_secured_clients.py by franz-go.
package main

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

func main() { answerCases(work) }

func work(asked map[string]string) error {
	action := asked["do"]
	if action == "stay" {
		return produce(asked, int(stay/pause), pause)
	}
	if action == "produce" || action == "round" {
		if err := produce(asked, records, 0); err != nil {
			return err
		}
	}
	if action == "consume" || action == "round" {
		return consume(asked)
	}
	return nil
}

func newClient(asked map[string]string, more ...kgo.Opt) (*kgo.Client, error) {
	options := append(more, kgo.SeedBrokers(asked["servers"]))
	config, err := tlsOf(asked)
	if err != nil {
		return nil, err
	}
	if config != nil {
		options = append(options, kgo.DialTLSConfig(config))
	}
	login := scram.Auth{User: asked["username"], Pass: asked["password"], IsToken: asked["tokenauth"] != ""}
	switch asked["mechanism"] {
	case "PLAIN":
		options = append(options, kgo.SASL(plain.Auth{User: asked["username"], Pass: asked["password"]}.AsMechanism()))
	case "SCRAM-SHA-256":
		options = append(options, kgo.SASL(login.AsSha256Mechanism()))
	case "SCRAM-SHA-512":
		options = append(options, kgo.SASL(login.AsSha512Mechanism()))
	case "OAUTHBEARER":
		options = append(options, kgo.SASL(oauth.Auth{Token: asked["token"]}.AsMechanism()))
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	if err := client.Ping(bounded); err != nil { // as its documentation advises: producers retry logins
		client.Close()
		return nil, err
	}
	return client, nil
}

func produce(asked map[string]string, number int, between time.Duration) error {
	client, err := newClient(asked)
	if err != nil {
		return err
	}
	defer client.Close()
	for index := 0; index < number; index++ {
		bounded, cancel := context.WithTimeout(context.Background(), bound)
		record := &kgo.Record{Topic: asked["topic"], Value: []byte(asked["case"])}
		err := client.ProduceSync(bounded, record).FirstErr()
		cancel()
		if err != nil {
			return err
		}
		time.Sleep(between)
	}
	return nil
}

func consume(asked map[string]string) error {
	client, err := newClient(
		asked, kgo.ConsumerGroup(asked["group"]), kgo.ConsumeTopics(asked["topic"]), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer client.Close()
	bounded, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	for count := 0; count < records; {
		fetches := client.PollFetches(bounded)
		for _, failed := range fetches.Errors() {
			return failed.Err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			if string(record.Value) == asked["case"] {
				count++
			}
		})
	}
	return client.CommitUncommittedOffsets(bounded)
}
