import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Goes once through everything a Java client does with a broker; prints one line per round. */
public class ClientRounds {
    static String servers;
    static String run;

    interface Round {
        void go() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        servers = args[0];
        run = args[1];
        round("codecs", ClientRounds::codecs);
        round("headers", ClientRounds::headers);
        round("offsets", ClientRounds::offsets);
        round("groups", ClientRounds::groups);
        round("static-members", ClientRounds::staticMembers);
        round("admin", ClientRounds::admin);
        System.exit(0);
    }

    static void round(String name, Round round) throws Exception {
        long begun = System.nanoTime();
        round.go();
        System.out.println("ok " + name + " " + (System.nanoTime() - begun) / 1_000_000 + " ms");
    }

    static void check(boolean holds, String what) {
        if (!holds) throw new IllegalStateException(what);
    }

    static Map<String, Object> config(Object... pairs) {
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", servers);
        for (int i = 0; i < pairs.length; i += 2) config.put((String) pairs[i], pairs[i + 1]);
        return config;
    }

    static KafkaProducer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(config(pairs), new StringSerializer(), new StringSerializer());
    }

    static KafkaConsumer<String, String> consumer(Object... pairs) {
        Map<String, Object> config = config("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        for (int i = 0; i < pairs.length; i += 2) config.put((String) pairs[i], pairs[i + 1]);
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    static void create(String topic, int partitions) throws Exception {
        try (Admin admin = Admin.create(config())) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, (short) 1))).all().get();
        }
    }

    static List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> records = new ArrayList<>();
        long deadline = System.currentTimeMillis() + 30_000;
        while (records.size() < count) {
            check(System.currentTimeMillis() < deadline, "only " + records.size() + " of " + count + " came");
            consumer.poll(Duration.ofMillis(200)).forEach(records::add);
        }
        return records;
    }

    static void codecs() throws Exception {
        for (String codec : List.of("none", "gzip", "snappy", "lz4", "zstd")) {
            for (boolean idempotent : List.of(true, false)) {
                String topic = "java-" + run + "-" + codec + "-" + idempotent;
                create(topic, 1);
                List<Future<RecordMetadata>> sent = new ArrayList<>();
                try (KafkaProducer<String, String> producer =
                        producer("compression.type", codec, "enable.idempotence", idempotent, "linger.ms", 5)) {
                    for (int i = 0; i < 500; i++)
                        sent.add(producer.send(new ProducerRecord<>(topic, "k", "value " + i)));
                }
                for (int i = 0; i < 500; i++) check(sent.get(i).get().offset() == i, "offset " + i);
                try (KafkaConsumer<String, String> consumer = consumer()) {
                    consumer.assign(List.of(new TopicPartition(topic, 0)));
                    List<ConsumerRecord<String, String>> records = read(consumer, 500);
                    for (int i = 0; i < 500; i++)
                        check(records.get(i).value().equals("value " + i), codec + " value " + i);
                }
            }
        }
    }

    static void headers() throws Exception {
        String topic = "java-headers-" + run;
        create(topic, 1);
        try (KafkaProducer<String, String> producer = producer()) {
            ProducerRecord<String, String> record = new ProducerRecord<>(topic, 0, 1_650_000_000_000L, "k", "v");
            record.headers().add("one", "1".getBytes(StandardCharsets.UTF_8)).add("none", null);
            RecordMetadata metadata = producer.send(record).get();
            check(metadata.timestamp() == 1_650_000_000_000L, "timestamp of the acknowledgement");
        }
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            ConsumerRecord<String, String> record = read(consumer, 1).get(0);
            check(record.timestamp() == 1_650_000_000_000L, "timestamp");
            check(new String(record.headers().lastHeader("one").value()).equals("1"), "header");
            check(record.headers().lastHeader("none").value() == null, "null header");
        }
    }

    static void offsets() throws Exception {
        String topic = "java-offsets-" + run;
        create(topic, 1);
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < 10; i++)
                producer.send(new ProducerRecord<>(topic, 0, 1_000_000L + i * 1000, "k", "v" + i)).get();
        }
        try (KafkaConsumer<String, String> consumer = consumer("group.id", "offsets-" + run)) {
            check(consumer.beginningOffsets(List.of(partition)).get(partition) == 0, "beginning");
            check(consumer.endOffsets(List.of(partition)).get(partition) == 10, "end");
            check(consumer.offsetsForTimes(Map.of(partition, 1_003_500L)).get(partition).offset() == 4, "time");
            consumer.assign(List.of(partition));
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(7, "seven")));
            OffsetAndMetadata committed = consumer.committed(Set.of(partition)).get(partition);
            check(committed.offset() == 7 && committed.metadata().equals("seven"), "committed");
        }
        try (KafkaConsumer<String, String> consumer = consumer("group.id", "offsets-" + run)) {
            consumer.assign(List.of(partition));
            check(read(consumer, 3).get(0).value().equals("v7"), "continues at the commit");
        }
    }

    static void groups() throws Exception {
        for (String assignor : List.of("RangeAssignor", "CooperativeStickyAssignor")) {
            String topic = "java-group-" + run + "-" + assignor;
            create(topic, 4);
            String[] member = {
                "group.id", topic, "heartbeat.interval.ms", "200",
                "partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor
            };
            KafkaConsumer<String, String> first = consumer((Object[]) member);
            KafkaConsumer<String, String> second = consumer((Object[]) member);
            first.subscribe(List.of(topic));
            second.subscribe(List.of(topic));
            long deadline = System.currentTimeMillis() + 60_000;
            while (first.assignment().size() != 2 || second.assignment().size() != 2) {
                check(System.currentTimeMillis() < deadline, "no balance: " + first.assignment() + second.assignment());
                first.poll(Duration.ofMillis(50));
                second.poll(Duration.ofMillis(50));
            }
            Set<TopicPartition> all = new HashSet<>(first.assignment());
            all.addAll(second.assignment());
            check(all.size() == 4, "overlap: " + first.assignment() + second.assignment());
            second.close();
            while (first.assignment().size() != 4) {
                check(System.currentTimeMillis() < deadline, "no takeover: " + first.assignment());
                first.poll(Duration.ofMillis(50));
            }
            first.close();
        }
    }

    static void staticMembers() throws Exception {
        String topic = "java-static-" + run;
        create(topic, 2);
        for (int life = 0; life < 2; life++) {
            try (KafkaConsumer<String, String> consumer =
                    consumer("group.id", topic, "group.instance.id", "one", "heartbeat.interval.ms", "200")) {
                consumer.subscribe(List.of(topic));
                long deadline = System.currentTimeMillis() + 30_000;
                while (consumer.assignment().size() != 2) {
                    check(System.currentTimeMillis() < deadline, "static member got nothing");
                    consumer.poll(Duration.ofMillis(50));
                }
            }
        }
    }

    static void admin() throws Exception {
        String topic = "java-admin-" + run;
        try (Admin admin = Admin.create(config())) {
            admin.createTopics(List.of(
                    new NewTopic(topic, 2, (short) 1).configs(Map.of("retention.ms", "100000")))).all().get();
            check(admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).partitions().size() == 2,
                    "describe topic");
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            admin.incrementalAlterConfigs(Map.of(resource, List.of(
                    new AlterConfigOp(new ConfigEntry("segment.bytes", "200000"), AlterConfigOp.OpType.SET))))
                    .all().get();
            check(admin.describeConfigs(List.of(resource)).all().get().get(resource).get("segment.bytes").value()
                    .equals("200000"), "config");
            TopicPartition partition = new TopicPartition(topic, 0);
            try (KafkaProducer<String, String> producer = producer()) {
                for (int i = 0; i < 10; i++) producer.send(new ProducerRecord<>(topic, 0, "k", "v")).get();
            }
            check(admin.listOffsets(Map.of(partition, OffsetSpec.latest())).partitionResult(partition).get().offset()
                    == 10, "latest");
            admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(4))).all().get();
            check(admin.listOffsets(Map.of(partition, OffsetSpec.earliest())).partitionResult(partition).get()
                    .offset() == 4, "earliest");
            check(admin.describeCluster().nodes().get().size() == 1, "cluster");
            check(!admin.describeLogDirs(List.of(admin.describeCluster().controller().get().id()))
                    .allDescriptions().get().isEmpty(), "log dirs");
            String group = "admin-" + run;
            try (KafkaConsumer<String, String> consumer = consumer("group.id", group)) {
                consumer.assign(List.of(partition));
                consumer.commitSync(Map.of(partition, new OffsetAndMetadata(5)));
            }
            check(admin.listConsumerGroups().all().get().stream().anyMatch(g -> g.groupId().equals(group)), "groups");
            check(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().get(partition).offset()
                    == 5, "group offsets");
            check(admin.describeConsumerGroups(List.of(group)).all().get().get(group).members().isEmpty(), "members");
            TopicPartition other = new TopicPartition(topic, 1);
            admin.alterConsumerGroupOffsets(group, Map.of(
                    partition, new OffsetAndMetadata(6), other, new OffsetAndMetadata(0))).all().get();
            admin.deleteConsumerGroupOffsets(group, Set.of(partition)).all().get();
            admin.deleteConsumerGroups(List.of(group)).all().get();
            admin.deleteTopics(List.of(topic)).all().get();
            check(!admin.listTopics().names().get().contains(topic), "deleted");
        }
    }
}
