// A producer, a member of a group and an administrator, by @platformatic/kafka: SERVERS TOPIC. It prints what it read.
const { pathToFileURL } = require("node:url");

// The library is written for Node 22, and Node 20 lacks only this of it.
Promise.withResolvers ??= function () {
  const made = {};
  made.promise = new this((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
};

const RECORDS = 100;
const [servers, topic] = process.argv.slice(2);

async function main() {
  const { Admin, Consumer, MessagesStreamModes, Producer, stringDeserializers, stringSerializers } =
    await import(pathToFileURL(require.resolve("@platformatic/kafka")));
  const base = { clientId: "platformatic", bootstrapBrokers: servers.split(",") };
  const admin = new Admin(base);
  await admin.createTopics({ topics: [topic], partitions: 3, replicas: 1 });

  const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true });
  for (let number = 0; number < RECORDS; number++) {
    await producer.send({ messages: [{ topic, key: `${number}`, value: `value ${number}`, headers: { h: "v" } }] });
  }
  await producer.close();

  const group = { ...base, groupId: `${topic}-readers`, deserializers: stringDeserializers };
  const consumer = new Consumer(group);
  const stream = await consumer.consume({ topics: [topic], mode: MessagesStreamModes.EARLIEST, autocommit: false });
  let count = 0;
  for await (const message of stream) {
    console.log(`read ${message.key} ${message.value} ${message.headers.get("h")}`);
    await message.commit();
    if (++count === RECORDS) break;
  }
  const groups = await admin.listGroups();
  console.log(`groups ${[...groups.keys()].includes(group.groupId)}`);
  await consumer.close(true);
  await admin.deleteGroups({ groups: [group.groupId] });
  await admin.deleteTopics({ topics: [topic] });
  await admin.close();
}

main().then(
  () => process.exit(0),
  (error) => {
    console.log("error", error, error.errors ?? "");
    process.exit(1);
  },
);
