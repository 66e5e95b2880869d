// One round of a client by kafkajs: SERVERS TOPIC GROUP, as test_client_versions.py asks for it.
// It has no consumer without a group: a second one reads, and commits nothing.
const { Kafka, logLevel, CompressionTypes } = require("kafkajs");

const PARTITIONS = 3;
const RECORDS = 30;
const FIRST_MS = 1600000000000;

const [servers, topic, group] = process.argv.slice(2);
const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.WARN });

async function produce() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let number = 0; number < RECORDS; number++) {
    const compression = number < RECORDS / 2 ? CompressionTypes.None : CompressionTypes.GZIP;
    const message = { partition: number % PARTITIONS, value: `${number}`, timestamp: `${FIRST_MS + number}` };
    const [written] = await producer.send({ topic, acks: -1, compression, messages: [message] });
    console.log(`produced ${written.partition} ${written.baseOffset} ${number}`);
  }
  await producer.disconnect();
}

async function read(kind, groupId, commits) {
  const consumer = kafka.consumer({ groupId });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await new Promise((resolve, reject) => {
    let count = 0;
    consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || reject(payload.error));
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          console.log(`${kind} ${partition} ${message.offset} ${message.value}`);
          if (++count === RECORDS) resolve();
        },
      })
      .catch(reject);
  });
  if (commits) {
    const offsets = [...Array(PARTITIONS).keys()].map((partition) => ({ topic, partition, offset: `${RECORDS / PARTITIONS}` }));
    await consumer.commitOffsets(offsets);
  }
  await consumer.disconnect();
}

async function offsets() {
  const admin = kafka.admin();
  await admin.connect();
  for (const { partition, offset } of await admin.fetchTopicOffsetsByTimestamp(topic, FIRST_MS + RECORDS / 2))
    console.log(`at ${partition} ${offset}`);
  for (const { partition, high } of await admin.fetchTopicOffsets(topic)) console.log(`end ${partition} ${high}`);
  const [found] = await admin.fetchOffsets({ groupId: group, topics: [topic] });
  for (const { partition, offset } of found.partitions) console.log(`committed ${partition} ${offset}`);
  await admin.disconnect();
}

async function round() {
  await produce();
  await read("read", `${group}-reader`, false);
  await read("member", group, true);
  await offsets();
}

round().then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
