// A world in JavaScript, which an actor of minefleet plays: walk to the right end of a corridor of ten fields.
//
//   npm install @grpc/grpc-js @grpc/proto-loader
//   minefleet train examples/elsewhere.py services.actor.address=127.0.0.1:7003
//   node examples/world.js 127.0.0.1:7003 4
const grpc = require("@grpc/grpc-js");
const { loadSync } = require("@grpc/proto-loader");
const { join } = require("path");

const [ACTOR, WORLDS] = [process.argv[2], Number(process.argv[3] ?? 1)];
const [WIRE_VERSION, LENGTH, MAX_STEPS] = [6, 10, 100];
const PROTOS = process.env.PROTOS ?? join(__dirname, "../protos");
const FILE = "minefleet/v1/worlds_service.proto";
const OPTIONS = { includeDirs: [PROTOS], keepCase: true, defaults: true };
// Without keepalive an actor whose machine is cut off would be waited for without end.
const KEEPALIVE = { "grpc.keepalive_time_ms": 20000, "grpc.keepalive_timeout_ms": 15000 };
const { minefleet } = grpc.loadPackageDefinition(loadSync(FILE, OPTIONS));

const worlds = Array.from({ length: WORLDS }, () => ({ place: 0, steps: 0 }));

function observed(world) {
  const bytes = Buffer.alloc(4); // The space is a Box of one float32.
  bytes.writeFloatLE(world.place / LENGTH);
  return [bytes];
}

function obey(command) {
  const world = worlds[command.world];
  if (!command.actions.length) {
    Object.assign(world, { place: 0, steps: 0 });
    return { world: command.world, obs: observed(world), codec: "CODEC_NONE" };
  }
  const right = command.actions[0].readBigInt64LE() === 1n; // The space is a Discrete(2).
  world.place = Math.max(0, world.place + (right ? 1 : -1));
  world.steps += 1;
  const terminated = world.place === LENGTH;
  return {
    world: command.world, obs: observed(world), codec: "CODEC_NONE",
    reward: terminated ? 1 : -0.01, terminated, truncated: !terminated && world.steps === MAX_STEPS,
  };
}

const client = new minefleet.v1.WorldsService(ACTOR, grpc.credentials.createInsecure(), KEEPALIVE);

function dial() {
  const stream = client.Play();
  stream.on("data", ({ commands }) => commands && stream.write({ results: { results: commands.commands.map(obey) } }));
  stream.on("error", () => {}); // Its status follows, as after an end without an error.
  stream.on("status", ({ details }) => {
    console.log(`again in a second: ${details}`);
    setTimeout(dial, 1000);
  });
  stream.write({ hello: { wire_version: WIRE_VERSION, name: `javascript-${process.pid}`, worlds: WORLDS } });
}

dial();
