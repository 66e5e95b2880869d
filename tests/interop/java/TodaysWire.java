import java.util.*;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.consumer.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.*;
import org.apache.kafka.common.serialization.*;

/** What brokers answer since the later versions of APIs: SERVERS. The lines are the same for any broker of that level. */
public final class TodaysWire {
    static final String TOPIC = "wire";
    static final TopicPartition PARTITION = new TopicPartition(TOPIC, 0), EMPTY = new TopicPartition(TOPIC, 1);
    static final long[] TIMES = {1000, 9000, 3000, 9000, 5};

    public static void main(String[] arguments) throws Exception {
        Map<String, Object> servers = Map.of("bootstrap.servers", arguments[0]);
        try (Admin admin = Admin.create(servers)) {
            admin.createTopics(List.of(new NewTopic(TOPIC, 2, (short) 1))).all().get();
            write(arguments[0]);
            offsets(admin);
            topics(admin);
            groups(admin, arguments[0]);
            cluster(admin);
            features(admin);
        }
    }

    static void write(String servers) throws Exception {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "linger.ms", 0);
        var text = new StringSerializer();
        try (var producer = new KafkaProducer<String, String>(settings, text, text)) {
            for (long time : TIMES) producer.send(new ProducerRecord<>(TOPIC, 0, time, "k", "v")).get();
        }
    }

    static void offsets(Admin admin) throws Exception {
        Map<String, OffsetSpec> asked = new TreeMap<>(Map.of(
            "earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(), "max", OffsetSpec.maxTimestamp(),
            "local", OffsetSpec.earliestLocal(), "tiered", OffsetSpec.latestTiered(), "at", OffsetSpec.forTimestamp(2000)));
        for (var one : asked.entrySet()) {
            for (TopicPartition partition : List.of(PARTITION, EMPTY)) {
                var found = admin.listOffsets(Map.of(partition, one.getValue())).partitionResult(partition).get();
                System.out.println("offset " + one.getKey() + " " + partition.partition() + " " + found.offset()
                    + " " + found.timestamp() + " " + found.leaderEpoch());
            }
        }
    }

    static void topics(Admin admin) throws Exception {
        var named = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC);
        var found = admin.describeTopics(TopicCollection.ofTopicIds(List.of(named.topicId()))).allTopicIds().get();
        System.out.println("topic " + found.get(named.topicId()).name() + " "
            + found.get(named.topicId()).partitions().size());
        var unknown = new Uuid(5, 5);
        System.out.println("topic " + failure(
            admin.describeTopics(TopicCollection.ofTopicIds(List.of(unknown))).topicIdValues().get(unknown)));
        var logs = admin.describeLogDirs(List.of(named.partitions().get(0).leader().id())).allDescriptions().get();
        for (var broker : logs.values()) for (var directory : broker.values()) {
            long total = directory.totalBytes().orElse(-1), usable = directory.usableBytes().orElse(-1);
            System.out.println("directory " + (0 < usable && usable <= total));
        }
    }

    static void groups(Admin admin, String servers) throws Exception {
        for (String group : List.of("wire-a", "wire-b")) read(servers, group);
        var every = new ListConsumerGroupOffsetsSpec();
        var offsets = admin.listConsumerGroupOffsets(Map.of("wire-a", every, "wire-b", every, "wire-c", every)).all().get();
        for (var one : new TreeMap<>(offsets).entrySet())
            System.out.println("committed " + one.getKey() + " " + one.getValue().get(PARTITION));
        for (GroupType type : List.of(GroupType.CLASSIC, GroupType.CONSUMER)) {
            var options = new ListConsumerGroupsOptions().withTypes(Set.of(type)).inStates(Set.of(ConsumerGroupState.EMPTY));
            var listed = admin.listConsumerGroups(options).all().get().stream().map(Object::toString).sorted();
            System.out.println("groups " + type + " " + listed.collect(Collectors.joining(" ")));
        }
    }

    static void read(String servers, String group) {
        Map<String, Object> settings = Map.of("bootstrap.servers", servers, "group.id", group,
            "auto.offset.reset", "earliest", "enable.auto.commit", false);
        var text = new StringDeserializer();
        try (var consumer = new KafkaConsumer<String, String>(settings, text, text)) {
            consumer.subscribe(List.of(TOPIC));
            int count = 0;
            while (count < TIMES.length) count += consumer.poll(java.time.Duration.ofSeconds(1)).count();
            consumer.commitSync();
        }
    }

    static void cluster(Admin admin) throws Exception {
        System.out.println("nodes " + admin.describeCluster().nodes().get().size());
        System.out.println("moves " + admin.listPartitionReassignments().reassignments().get());
        var moved = admin.alterPartitionReassignments(Map.of(PARTITION, Optional.empty())).values().get(PARTITION);
        System.out.println("move " + failure(moved));
    }

    static void features(Admin admin) throws Exception {
        System.out.println("features " + admin.describeFeatures().featureMetadata().get().supportedFeatures());
        var update = Map.of("some.feature", new FeatureUpdate((short) 1, FeatureUpdate.UpgradeType.UPGRADE));
        System.out.println("update " + failure(
            admin.updateFeatures(update, new UpdateFeaturesOptions()).values().get("some.feature")));
    }

    static String failure(KafkaFuture<?> future) throws InterruptedException {
        try {
            return "fine: " + future.get();
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        }
    }
}
