// A producer and a member of a group, by kafkajs: SERVERS TOPIC GROUP. It does what RidingClient.java does.
// The member may read a record again, so it counts those that it has not read before.
const { Kafka, logLevel } = require("kafkajs");

const PARTITIONS = 3;
const PAUSE_MS = 10;

const [servers, topic, groupId] = process.argv.slice(2);
const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.WARN });
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let stopped = false;
process.stdin.resume().on("end", () => (stopped = true));

async function write() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  let number = 0;
  for (; !stopped; number++) {
    const partition = number % PARTITIONS;
    await producer.send({ topic, acks: -1, messages: [{ partition, value: `${number}` }] });
    console.log(`wrote ${partition} ${number}`);
    await sleep(PAUSE_MS);
  }
  await producer.disconnect();
  return number;
}

async function read(written) {
  const consumer = kafka.consumer({ groupId });
  consumer.on(consumer.events.CRASH, ({ payload }) => payload.restart || fail(payload.error));
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const seen = new Set();
  await consumer.run({
    eachMessage: async ({ partition, message }) => {
      console.log(`read ${partition} ${message.value}`);
      seen.add(`${message.value}`);
    },
  });
  const number = await written;
  while (seen.size < number) await sleep(PAUSE_MS);
  await consumer.disconnect();
}

function fail(error) {
  console.log(`error ${error}`);
  process.exit(1);
}

read(write()).then(() => process.exit(0), fail);
