// The cases of test_secured_clients.py by sarama, which leaves SCRAM to another library.
package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
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

type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (of *conversation) Begin(user, password, authorized string) error {
	client, err := of.hash.NewClient(user, password, authorized)
	if err == nil {
		of.ClientConversation = client.NewConversation()
	}
	return err
}

type provider string

func (token provider) Token() (*sarama.AccessToken, error) {
	return &sarama.AccessToken{Token: string(token)}, nil
}

func configOf(asked map[string]string) (*sarama.Config, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Metadata.Retry.Max = 1
	config.Producer.Return.Successes = true
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	encrypted, err := tlsOf(asked)
	config.Net.TLS.Enable, config.Net.TLS.Config = encrypted != nil, encrypted
	if asked["mechanism"] != "" {
		login := &config.Net.SASL
		login.Enable, login.Mechanism = true, sarama.SASLMechanism(asked["mechanism"])
		login.User, login.Password = asked["username"], asked["password"]
		login.TokenProvider = provider(asked["token"])
		login.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient {
			if asked["mechanism"] == sarama.SASLTypeSCRAMSHA256 {
				return &conversation{hash: scram.SHA256}
			}
			return &conversation{hash: scram.SHA512}
		}
	}
	return config, err
}

func produce(asked map[string]string, number int, between time.Duration) error {
	config, err := configOf(asked)
	if err != nil {
		return err
	}
	producer, err := sarama.NewSyncProducer([]string{asked["servers"]}, config)
	if err != nil {
		return err
	}
	defer producer.Close()
	for index := 0; index < number; index++ {
		message := &sarama.ProducerMessage{Topic: asked["topic"], Value: sarama.StringEncoder(asked["case"])}
		if _, _, err := producer.SendMessage(message); err != nil {
			return err
		}
		time.Sleep(between)
	}
	return nil
}

type reader struct {
	wanted string
	count  int
}

func (*reader) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (*reader) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (of *reader) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for of.count < records {
		select {
		case message := <-claim.Messages():
			if string(message.Value) == of.wanted {
				of.count++
			}
			session.MarkMessage(message, "")
		case <-session.Context().Done():
			return nil
		}
	}
	session.Commit()
	return nil
}

func consume(asked map[string]string) error {
	config, err := configOf(asked)
	if err != nil {
		return err
	}
	group, err := sarama.NewConsumerGroup([]string{asked["servers"]}, asked["group"], config)
	if err != nil {
		return err
	}
	defer group.Close()
	bounded, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	found := &reader{wanted: asked["case"]}
	for found.count < records {
		if err := group.Consume(bounded, []string{asked["topic"]}, found); err != nil {
			return err
		}
		if errors.Is(bounded.Err(), context.DeadlineExceeded) {
			return fmt.Errorf("%d of %d records", found.count, records)
		}
	}
	return nil
}
