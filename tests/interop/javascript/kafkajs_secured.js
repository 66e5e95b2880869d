// The cases of test_secured_clients.py by kafkajs.
const fs = require("node:fs");
const { Kafka, logLevel } = require("kafkajs");

const RECORDS = 3;
const BOUND_MS = 20000;
const STAY_MS = 7000;
const PAUSE_MS = 250;

function cases() {
  const blocks = fs.readFileSync(0, "utf8").trim().split("\n\n");
  return blocks.map((block) => Object.fromEntries(block.split("\n").map(pair)));
}

function pair(line) {
  const at = line.indexOf("=");
  return [line.slice(0, at), line.slice(at + 1)];
}

function clientOf(asked) {
  const settings = {
    brokers: [asked.servers],
    logLevel: logLevel.NOTHING,
    retry: { initialRetryTime: 100, retries: 3 },
    reauthenticationThreshold: 1000,
  };
  if (asked.cafile) {
    settings.ssl = { ca: [fs.readFileSync(asked.cafile)] };
    if (asked.certfile) {
      settings.ssl.cert = fs.readFileSync(asked.certfile);
      settings.ssl.key = fs.readFileSync(asked.keyfile);
    }
  }
  if (asked.mechanism === "OAUTHBEARER") {
    settings.sasl = { mechanism: "oauthbearer", oauthBearerProvider: async () => ({ value: asked.token }) };
  } else if (asked.mechanism) {
    settings.sasl = { mechanism: asked.mechanism.toLowerCase(), username: asked.username, password: asked.password };
  }
  return new Kafka(settings);
}

async function produce(asked, number, pauseMs = 0) {
  const producer = clientOf(asked).producer();
  try {
    await producer.connect();
    for (let index = 0; index < number; index++) {
      await producer.send({ topic: asked.topic, messages: [{ value: asked.case }] });
      await new Promise((resolve) => setTimeout(resolve, pauseMs));
    }
  } finally {
    await producer.disconnect();
  }
}

async function consume(asked) {
  const consumer = clientOf(asked).consumer({ groupId: asked.group });
  try {
    await consumer.connect();
    await consumer.subscribe({ topic: asked.topic, fromBeginning: true });
    await new Promise((resolve, reject) => {
      let count = 0;
      setTimeout(() => reject(new Error(`${count} of ${RECORDS} records`)), BOUND_MS).unref();
      consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
      const eachMessage = async ({ message }) => {
        if (`${message.value}` === asked.case && ++count === RECORDS) resolve();
      };
      consumer.run({ eachMessage }).catch(reject);
    });
  } finally {
    await consumer.disconnect();
  }
}

async function work(asked) {
  if (asked.do === "stay") await produce(asked, STAY_MS / PAUSE_MS, PAUSE_MS);
  if (["produce", "round"].includes(asked.do)) await produce(asked, RECORDS);
  if (["consume", "round"].includes(asked.do)) await consume(asked);
}

async function main() {
  for (const asked of cases()) {
    try {
      await work(asked);
      console.log(`${asked.case}: ok`);
    } catch (error) {
      console.log(`${asked.case}: ${error.name} ${error.type ?? ""} ${error.message.split(/\s+/).join(" ")}`);
    }
  }
  process.exit(0);
}

main();
