// Each version of each API, by franz-go: SERVERS. A client whose newest versions are capped at 0, then at 1, and so
// on, makes a topic, writes, reads in a group, and sends every other request that the broker advertises. It prints
// "unexpected API VERSION CODE" for each error in a response that the request is not meant to have.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	records = 3
	bound   = 60 * time.Second

	addPartitionsToTxn, endTxn, txnOffsetCommit = 24, 26, 28
	clusterAuthorizationFailed = 31
	newestOfClients            = 3 // of AddPartitionsToTxn: brokers send later ones, and kgo does not
)

// Errors that requests are meant to have: those of brokers come from a client, and some ask for what is not there.
var expected = map[int16][]int16{
	4: {31}, 5: {31}, 6: {31}, 7: {31}, 27: {31}, 56: {31}, 67: {31}, // CLUSTER_AUTHORIZATION_FAILED
	17: {34}, 36: {34}, // ILLEGAL_SASL_STATE: the listener has no logins
	29: {54}, 30: {54}, 31: {54}, // SECURITY_DISABLED: there is no authorizer
	34: {57},                               // LOG_DIR_NOT_FOUND
	38: {64}, 39: {64}, 40: {64}, 41: {64}, // DELEGATION_TOKEN_REQUEST_NOT_ALLOWED: the listener has no logins
	43: {84},                               // ELECTION_NOT_NEEDED
	45: {85},                               // NO_REASSIGNMENT_IN_PROGRESS
	47: {86},                               // GROUP_SUBSCRIBED_TO_TOPIC
	57: {42, 95},                           // INVALID_REQUEST, INVALID_UPDATE_VERSION: metadata.version is no feature here
	68: {42},                               // INVALID_REQUEST: the heartbeat names no group
	72: {42},                               // INVALID_REQUEST: the push names no client instance
	76: {42}, 78: {42}, 79: {42}, 88: {42}, // INVALID_REQUEST: the request names no group
	91: {24}, 92: {24}, // INVALID_GROUP_ID: likewise
	93: {35}, // UNSUPPORTED_VERSION: nothing stores the description of a topology, as in Kafka without a plugin
}

// APIs of which franz-go has the codecs, but whose requests kgo does not send.
var unknownToClients = map[int16]bool{88: true, 93: true}

// Versions below which a whole client cannot go: Metadata 0 names no controller, FindCoordinator 0 finds only those
// of groups, and offsets of version 0 are in ZooKeeper. `oldest` asks in those.
var floors = map[int16]int16{3: 1, 8: 1, 9: 1, 10: 1}

func main() {
	servers := strings.Split(os.Args[1], ",")
	last := int16(0)
	served := advertised(servers)
	for _, one := range served {
		last = max(last, one.MaxVersion)
	}
	for version := int16(0); version <= last; version++ {
		walk(servers, served, version)
		if version == 0 {
			oldest(servers)
		}
		fmt.Println("walked", version)
	}
}

func advertised(servers []string) map[int16]kmsg.ApiVersionsResponseApiKey {
	client := newClient(servers, 0, floors)
	defer client.Close()
	response, err := kmsg.NewPtrApiVersionsRequest().RequestWith(bounded(), client)
	check(err)
	served := map[int16]kmsg.ApiVersionsResponseApiKey{}
	for _, one := range response.ApiKeys {
		served[one.ApiKey] = one
	}
	return served
}

func newClient(servers []string, version int16, floors map[int16]int16, options ...kgo.Opt) *kgo.Client {
	versions := kversion.Stable()
	versions.EachMaxKeyVersion(func(key, newest int16) {
		versions.SetMaxKeyVersion(key, min(newest, max(version, floors[key])))
	})
	if version < 3 { // record batches, and with them idempotence, came with version 3 of Produce
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(append(options,
		kgo.SeedBrokers(servers...),
		kgo.MaxVersions(versions),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	)...)
	check(err)
	return client
}

func walk(servers []string, served map[int16]kmsg.ApiVersionsResponseApiKey, version int16) {
	topic, group := fmt.Sprint("walk-", version), fmt.Sprint("walkers-", version)
	client := newClient(servers, version, floors)
	defer client.Close()
	ask(client, createTopic(topic))
	for number := 0; number < records; number++ {
		check(client.ProduceSync(bounded(), &kgo.Record{Topic: topic, Value: []byte("v")}).FirstErr())
	}
	start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	read(newClient(servers, version, floors, kgo.ConsumeTopics(topic), start))
	join(servers, version, topic, group)
	if _, ok := served[endTxn]; ok && version <= served[txnOffsetCommit].MaxVersion {
		transact(servers[0], client, served, version, topic)
	}
	for _, request := range requests(topic, group) {
		if one, ok := served[request.Key()]; ok && version <= one.MaxVersion {
			ask(client, request)
		}
	}
	for key, one := range served {
		if !walked[key] && one.MinVersion <= version && version <= one.MaxVersion {
			if request := kmsg.RequestForKey(key); unknownToClients[key] {
				request.SetVersion(version)
				exchange(servers[0], request)
			} else {
				ask(client, request)
			}
		}
	}
}

// oldest commits an offset to ZooKeeper and reads it from there.
func oldest(servers []string) {
	client := newClient(servers, 0, nil)
	defer client.Close()
	ask(client, kmsg.NewPtrMetadataRequest())
	found := kmsg.NewPtrFindCoordinatorRequest()
	found.CoordinatorKey = "oldest"
	ask(client, found)
	committed, commit := kmsg.NewPtrOffsetCommitRequest(), kmsg.NewOffsetCommitRequestTopic()
	position := kmsg.NewOffsetCommitRequestTopicPartition()
	position.Offset = 1
	commit.Topic, commit.Partitions = "oldest", append(commit.Partitions, position)
	committed.Group, committed.Topics = "oldest", append(committed.Topics, commit)
	fetched, fetch := kmsg.NewPtrOffsetFetchRequest(), kmsg.NewOffsetFetchRequestTopic()
	fetch.Topic, fetch.Partitions = "oldest", []int32{0}
	fetched.Group, fetched.Topics = "oldest", append(fetched.Topics, fetch)
	full := newClient(servers, 1, floors)
	defer full.Close()
	ask(full, createTopic("oldest"))
	ask(client, committed)
	ask(client, fetched)
}

func read(client *kgo.Client) {
	defer client.Close()
	for count := 0; count < records; {
		fetches := client.PollFetches(bounded())
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		count += fetches.NumRecords()
	}
}

// join is a member of a group that reads all, commits, heartbeats and leaves.
func join(servers []string, version int16, topic, group string) {
	client := newClient(servers, version, floors,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.HeartbeatInterval(20*time.Millisecond), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	for count := 0; count < records; {
		fetches := client.PollFetches(bounded())
		for _, failed := range fetches.Errors() {
			check(failed.Err)
		}
		count += fetches.NumRecords()
	}
	check(client.CommitUncommittedOffsets(bounded()))
	time.Sleep(100 * time.Millisecond)
	check(client.LeaveGroupContext(bounded()))
	client.Close()
}

func createTopic(topic string) kmsg.Request {
	request, one := kmsg.NewPtrCreateTopicsRequest(), kmsg.NewCreateTopicsRequestTopic()
	one.Topic, one.NumPartitions, one.ReplicationFactor = topic, 1, 1
	request.Topics = append(request.Topics, one)
	request.TimeoutMillis = 30_000
	return request
}

// APIs whose requests are made above, or come in `requests` with content.
var walked = map[int16]bool{
	0: true, 1: true, 2: true, 3: true, 8: true, 9: true, 10: true, 11: true, 12: true, 13: true, 14: true,
	18: true, 19: true,
}

func requests(topic, group string) []kmsg.Request {
	all := append(append(ofTopics(topic), ofGroups(topic, group)...), anyACL())
	for _, one := range all {
		walked[one.Key()] = true
	}
	return all
}

// anyACL asks for all ACLs; the empty request of kmsg.RequestForKey has values that no broker reads.
func anyACL() kmsg.Request {
	request := kmsg.NewPtrDescribeACLsRequest()
	request.ResourceType, request.ResourcePatternType = kmsg.ACLResourceTypeAny, kmsg.ACLResourcePatternTypeAny
	request.Operation, request.PermissionType = kmsg.ACLOperationAny, kmsg.ACLPermissionTypeAny
	return request
}

func ask(client *kgo.Client, request kmsg.Request) {
	response, err := client.Request(bounded(), request)
	if err != nil {
		fmt.Println("unexpected", kmsg.NameForKey(request.Key()), request.GetVersion(), err)
		return
	}
	for _, code := range codes(reflect.ValueOf(response)) {
		if !meant(request.Key(), code) {
			fmt.Println("unexpected", kmsg.NameForKey(request.Key()), response.GetVersion(), code)
		}
	}
}

// exchange sends a request in a version that kgo itself would not choose, with franz-go's codecs. Being one of brokers,
// it may be refused to a client.
func exchange(server string, request kmsg.Request) {
	connection, err := net.Dial("tcp", server)
	check(err)
	defer connection.Close()
	check(connection.SetDeadline(time.Now().Add(bound)))
	_, err = connection.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID("walker")).AppendRequest(nil, request, 1))
	check(err)
	size := make([]byte, 4)
	_, err = io.ReadFull(connection, size)
	check(err)
	frame := make([]byte, binary.BigEndian.Uint32(size))
	_, err = io.ReadFull(connection, frame)
	check(err)
	response, header := request.ResponseKind(), 4 // the correlation id
	if request.IsFlexible() {
		header++ // no tagged fields
	}
	check(response.ReadFrom(frame[header:]))
	for _, code := range codes(reflect.ValueOf(response)) {
		if code != clusterAuthorizationFailed && !meant(request.Key(), code) {
			fmt.Println("unexpected", kmsg.NameForKey(request.Key()), request.GetVersion(), code)
		}
	}
}

func meant(key, code int16) bool {
	for _, one := range expected[key] {
		if one == code {
			return true
		}
	}
	return code == 0
}

// codes returns every ErrorCode in a response.
func codes(value reflect.Value) (found []int16) {
	switch value.Kind() {
	case reflect.Pointer:
		if !value.IsNil() {
			found = codes(value.Elem())
		}
	case reflect.Slice:
		for i := 0; i < value.Len(); i++ {
			found = append(found, codes(value.Index(i))...)
		}
	case reflect.Struct:
		for i := 0; i < value.NumField(); i++ {
			if value.Type().Field(i).Name == "ErrorCode" {
				found = append(found, int16(value.Field(i).Int()))
			} else {
				found = append(found, codes(value.Field(i))...)
			}
		}
	}
	return found
}

func bounded() context.Context {
	ctx, _ := context.WithTimeout(context.Background(), bound) //nolint: the process ends soon
	return ctx
}

func check(err error) {
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
}

func ofTopics(topic string) []kmsg.Request {
	offsets, epochs := kmsg.NewPtrListOffsetsRequest(), kmsg.NewPtrOffsetForLeaderEpochRequest()
	offset, epoch := kmsg.NewListOffsetsRequestTopic(), kmsg.NewOffsetForLeaderEpochRequestTopic()
	latest, known := kmsg.NewListOffsetsRequestTopicPartition(), kmsg.NewOffsetForLeaderEpochRequestTopicPartition()
	latest.Timestamp = -1
	offset.Topic, offset.Partitions = topic, append(offset.Partitions, latest)
	epoch.Topic, epoch.Partitions = topic, append(epoch.Partitions, known)
	offsets.Topics, epochs.Topics = append(offsets.Topics, offset), append(epochs.Topics, epoch)
	deleted, gone := kmsg.NewPtrDeleteRecordsRequest(), kmsg.NewDeleteRecordsRequestTopic()
	before := kmsg.NewDeleteRecordsRequestTopicPartition()
	before.Offset = 1
	gone.Topic, gone.Partitions = topic, append(gone.Partitions, before)
	deleted.Topics = append(deleted.Topics, gone)
	more, grown := kmsg.NewPtrCreatePartitionsRequest(), kmsg.NewCreatePartitionsRequestTopic()
	grown.Topic, grown.Count = topic, 2
	more.Topics = append(more.Topics, grown)
	elected, led := kmsg.NewPtrElectLeadersRequest(), kmsg.NewElectLeadersRequestTopic()
	led.Topic, led.Partitions = topic, []int32{0}
	elected.Topics = append(elected.Topics, led)
	moved, move := kmsg.NewPtrAlterPartitionAssignmentsRequest(), kmsg.NewAlterPartitionAssignmentsRequestTopic()
	cancelled := kmsg.NewAlterPartitionAssignmentsRequestTopicPartition()
	cancelled.Replicas = nil
	move.Topic, move.Partitions = topic, append(move.Partitions, cancelled)
	moved.Topics = append(moved.Topics, move)
	dirs, dir := kmsg.NewPtrAlterReplicaLogDirsRequest(), kmsg.NewAlterReplicaLogDirsRequestDir()
	placed := kmsg.NewAlterReplicaLogDirsRequestDirTopic()
	placed.Topic, placed.Partitions = topic, []int32{0}
	dir.Dir, dir.Topics = "/nowhere", append(dir.Topics, placed)
	dirs.Dirs = append(dirs.Dirs, dir)
	features, feature := kmsg.NewPtrUpdateFeaturesRequest(), kmsg.NewUpdateFeaturesRequestFeatureUpdate()
	feature.Feature, feature.MaxVersionLevel = "metadata.version", 1
	features.FeatureUpdates = append(features.FeatureUpdates, feature)
	return append([]kmsg.Request{
		offsets, epochs, deleted, more, elected, moved, dirs, features,
		kmsg.NewPtrListPartitionReassignmentsRequest(), kmsg.NewPtrDescribeLogDirsRequest(),
		kmsg.NewPtrDescribeClusterRequest(), kmsg.NewPtrInitProducerIDRequest(),
	}, ofConfigs(topic)...)
}

func ofConfigs(topic string) []kmsg.Request {
	value := "99999"
	shown, altered := kmsg.NewPtrDescribeConfigsRequest(), kmsg.NewPtrAlterConfigsRequest()
	show, alter := kmsg.NewDescribeConfigsRequestResource(), kmsg.NewAlterConfigsRequestResource()
	show.ResourceType, show.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	alter.ResourceType, alter.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	set := kmsg.NewAlterConfigsRequestResourceConfig()
	set.Name, set.Value = "retention.ms", &value
	alter.Configs = append(alter.Configs, set)
	shown.Resources, altered.Resources = append(shown.Resources, show), append(altered.Resources, alter)
	stepwise, step := kmsg.NewPtrIncrementalAlterConfigsRequest(), kmsg.NewIncrementalAlterConfigsRequestResource()
	step.ResourceType, step.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	change := kmsg.NewIncrementalAlterConfigsRequestResourceConfig()
	change.Name, change.Op, change.Value = "retention.ms", kmsg.IncrementalAlterConfigOpSet, &value
	step.Configs = append(step.Configs, change)
	stepwise.Resources = append(stepwise.Resources, step)
	return []kmsg.Request{shown, altered, stepwise}
}

func ofGroups(topic, group string) []kmsg.Request {
	described, removed := kmsg.NewPtrDescribeGroupsRequest(), kmsg.NewPtrDeleteGroupsRequest()
	described.Groups, removed.Groups = []string{group}, []string{group}
	deleted, gone := kmsg.NewPtrOffsetDeleteRequest(), kmsg.NewOffsetDeleteRequestTopic()
	gone.Topic, gone.Partitions = topic, append(gone.Partitions, kmsg.NewOffsetDeleteRequestTopicPartition())
	deleted.Group, deleted.Topics = group, append(deleted.Topics, gone)
	// DeleteTopics comes last of those of topics and groups.
	topics, dropped := kmsg.NewPtrDeleteTopicsRequest(), kmsg.NewDeleteTopicsRequestTopic()
	dropped.Topic = kmsg.StringPtr(topic)
	topics.TopicNames, topics.Topics = []string{topic}, append(topics.Topics, dropped)
	topics.TimeoutMillis = 30_000
	return []kmsg.Request{described, kmsg.NewPtrListGroupsRequest(), deleted, removed, topics}
}

// topicID asks for a topic's id, in a version of Metadata that has it.
func topicID(server, topic string) [16]byte {
	client := newClient([]string{server}, 12, floors)
	defer client.Close()
	request, one := kmsg.NewPtrMetadataRequest(), kmsg.NewMetadataRequestTopic()
	one.Topic = &topic
	request.Topics = append(request.Topics, one)
	response, err := request.RequestWith(bounded(), client)
	check(err)
	return response.Topics[0].TopicID
}

// transact commits a transaction of one partition and the offsets of a group.
func transact(server string, client *kgo.Client, served map[int16]kmsg.ApiVersionsResponseApiKey, version int16, topic string) {
	id, group := "transactional-"+topic, "transactional-"+topic
	begun := kmsg.NewPtrInitProducerIDRequest()
	begun.TransactionalID, begun.TransactionTimeoutMillis = &id, 60_000
	response, err := begun.RequestWith(bounded(), client)
	check(err)
	producer, epoch := response.ProducerID, response.ProducerEpoch
	added, one := kmsg.NewPtrAddPartitionsToTxnRequest(), kmsg.NewAddPartitionsToTxnRequestTopic()
	one.Topic, one.Partitions = topic, []int32{0}
	added.TransactionalID, added.ProducerID, added.ProducerEpoch = id, producer, epoch
	added.Topics = append(added.Topics, one)
	batched, of := kmsg.NewAddPartitionsToTxnRequestTransaction(), kmsg.NewAddPartitionsToTxnRequestTransactionTopic()
	of.Topic, of.Partitions = topic, []int32{0}
	batched.TransactionalID, batched.ProducerID, batched.ProducerEpoch = id, producer, epoch
	batched.Topics = append(batched.Topics, of)
	added.Transactions = append(added.Transactions, batched)
	offsets := kmsg.NewPtrAddOffsetsToTxnRequest()
	offsets.TransactionalID, offsets.ProducerID, offsets.ProducerEpoch, offsets.Group = id, producer, epoch, group
	committed, commit := kmsg.NewPtrTxnOffsetCommitRequest(), kmsg.NewTxnOffsetCommitRequestTopic()
	position := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	position.Offset = 1
	commit.Topic, commit.Partitions = topic, append(commit.Partitions, position)
	commit.TopicID = topicID(server, topic)
	committed.TransactionalID, committed.Group = id, group
	committed.ProducerID, committed.ProducerEpoch = producer, epoch
	committed.Topics = append(committed.Topics, commit)
	ended := kmsg.NewPtrEndTxnRequest()
	ended.TransactionalID, ended.ProducerID, ended.ProducerEpoch, ended.Commit = id, producer, epoch, true
	producers, described := kmsg.NewPtrDescribeProducersRequest(), kmsg.NewPtrDescribeTransactionsRequest()
	by := kmsg.NewDescribeProducersRequestTopic()
	by.Topic, by.Partitions = topic, []int32{0}
	producers.Topics, described.TransactionalIDs = append(producers.Topics, by), []string{id}
	if version > newestOfClients && version <= served[addPartitionsToTxn].MaxVersion {
		added.SetVersion(version)
		exchange(server, added)
	}
	for _, request := range []kmsg.Request{
		added, offsets, committed, producers, described, kmsg.NewPtrListTransactionsRequest(), ended,
	} {
		walked[request.Key()] = true
		if api, ok := served[request.Key()]; ok && (version <= api.MaxVersion || request.Key() == ended.Key()) {
			ask(client, request)
		}
	}
}
