// The ring: actors act, replay keeps, the learner trains, parameters hand the new weights to the actors.
import type { JSX } from "preact";
import type { Role, Status } from "./api";
import { Empty, Facts, Meter, Panel, Table } from "./parts";
import type { Answer } from "./polling";
import { href } from "./routing";
import { bytes, count, duration, number, percent } from "./units";

const KEY = /\b([a-z_]+(?:\.[a-z_]+)+)\b/;
const STAGES: Record<string, string> = {
  environment: "actor", inference: "actor", balance: "actor", replay: "replay", learner: "learner",
  weights: "parameters",
};
const SLOT_WAITS: Record<string, string> = {
  environment: "environment: steps, resets", inference: "inference", grant: "grant: the learner is behind",
  room: "room: replay is full", weights: "weights: newer ones", pace: "pace: too late for a chunk", balance: "balance: other slots",
};
const LOOP_WAITS: Record<string, string> = {
  training: "training", fragments: "fragments: the actors are behind", replay: "reading from replay",
  weights: "weights before it may go on", blocked: "copying weights",
};
export const STATE_SIGNS: Record<string, string> = { running: "●", paused: "‖", waiting: "‖", starting: "↻", draining: "↓" };
const BUCKETS = ["live", "leased", "trained", "expired", "evicted", "corrupt", "unaccounted"];

/** A bottleneck's sentence, each key a link to its value. */
function Sentence({ text }: { text: string }): JSX.Element {
  const link = (key: string) => <a key={key} href={href("config", { q: key })}><code>{key}</code></a>;
  return <>{text.split(KEY).map((part, index) => (index % 2 ? link(part) : part))}</>;
}

export const sum = (roles: Role[], stat: string): number | undefined => {
  const values = roles.flatMap(({ stats }) => stats[stat] ?? []);
  return values.length ? values.reduce((total, value) => total + value, 0) : undefined;
};

export function RingView({ status }: { status: Answer<Status> }): JSX.Element {
  const { data } = status;
  if (!data?.roles.length)
    return <Empty title={data ? "No role of this run is running" : "Reading…"}>
      {status.error ?? "The ring is seen while a run trains: choose one that is live, or start one with minefleet train."}
    </Empty>;
  const of = (kind: string) => data.roles.filter(({ name }) => name.replace(/-\d+$/, "") === kind);
  const [actors, shards, learners, parameters] = [of("actor"), of("replay"), of("learner"), of("parameters")];
  const versions = actors.flatMap(({ stats }) => stats.policy_version ?? []);
  const newest = parameters[0]?.stats.newest_version ?? learners[0]?.stats.policy_version;
  const unknown = data.roles.every(({ state }) => state in STATE_SIGNS)
    ? "not known yet: both loops must have worked for a while" : "not known while a role does not answer";
  const limiting = STAGES[data.bottleneck.stage ?? ""];
  const stat = (roles: Role[], name: string, unit: string) =>
    sum(roles, name) === undefined ? null : `${number(sum(roles, name))} ${unit}`;
  const reasons = ["grant", "room", "weights", "pace", "balance"];
  const waiting = reasons.reduce((total, name) => total + (sum(actors, `blocked_for_${name}`) ?? 0), 0);
  const span = versions.length ? [...new Set([Math.min(...versions), Math.max(...versions)])].map(count).join(" – ") : "–";
  return <>
    <p class="verdict" role="status">
      <b>{data.bottleneck.stage ? `Limit: ${data.bottleneck.stage}` : "Limit"}</b>
      <span><Sentence text={data.bottleneck.sentence || unknown} /></span>
    </p>
    <div class="overview">
      <div class="ring panel">
        <Station kind="actor" roles={actors} limiting={limiting} title="Actors" facts={[
          `${count(sum(actors, "slots"))} slots`, `${count(waiting)} blocked, ${count(sum(actors, "resetting_slots"))} resetting`,
          stat(actors, "env_failures", "failures"),
        ]} />
        <Arrow to="right" rate={`${number(sum(actors, "env_steps_per_s"))} steps/s`} what={stat(actors, "queued_fragments", "fragments queued")} />
        <Station kind="replay" roles={shards} limiting={limiting} title="Replay" facts={[
          stat(shards, "ready_steps", "steps ready"), stat(shards, "leased_steps", "steps leased"),
          `${bytes(sum(shards, "payload_disk_bytes"))} on disk`,
        ]} />
        <Arrow to="up" rate={`version ${span}`} what="weights" />
        <div class="hub quiet">
          lag {versions.length && newest !== undefined ? count(newest - Math.min(...versions)) : "–"} versions<br />
          staleness {number(data.metrics.staleness_mean as number)} versions
        </div>
        <Arrow to="down" rate={`${number(sum(learners, "sps"))} steps/s`} what="leased" />
        <Station kind="parameters" roles={parameters} limiting={limiting} title="Parameters" facts={[
          `version ${count(newest)}`, stat(parameters, "kept_versions", "versions kept"), stat(parameters, "watchers", "watching"),
        ]} />
        <Arrow to="left" rate={`version ${count(learners[0]?.stats.policy_version)}`} what="published" />
        <Station kind="learner" roles={learners} limiting={limiting} title="Learner" facts={[
          `iteration ${count(learners[0]?.stats.iteration)}`, `${percent(data.bottleneck.loop?.training)} training`,
          `return ${number(data.metrics.episode_return_mean as number)}`,
        ]} />
      </div>
      <div class="stack">
        <Shares title="Time of the slots" shares={data.bottleneck.slots} words={SLOT_WAITS} />
        <Shares title="Time of the learner's loop" shares={data.bottleneck.loop} words={LOOP_WAITS} />
      </div>
    </div>
    <div class="columns">
      <Ledger shards={shards} />
      <Panel title="Versions that actors act with" aside={`newest ${count(newest)}`}>
        <Table label="Versions" head={["Actor", "Version", "Lag", "Steps", "Rate"]}
          rows={actors.map(({ name, stats }) => [
            name, count(stats.policy_version),
            newest === undefined || stats.policy_version === undefined ? "–" : count(newest - stats.policy_version),
            number(stats.env_steps), `${number(stats.env_steps_per_s)} steps/s`,
          ])} />
      </Panel>
    </div>
  </>;
}

function Station(props: {
  kind: string; title: string; roles: Role[]; limiting: string | undefined; facts: (string | null)[];
}): JSX.Element {
  const isLimit = props.limiting === props.kind;
  const absent = props.roles.filter(({ state }) => !(state in STATE_SIGNS));
  return (
    <a class={`station ${isLimit ? "limit" : ""} ${absent.length ? "absent" : ""}`} href={href("logs", { role: props.kind })}>
      <b>{props.title} {props.roles.length > 1 && <small>× {props.roles.length}</small>}</b>
      {isLimit && <em>limits</em>}
      {absent.map(({ name, state }) => <em key={name}>{name}: {state}</em>)}
      {!props.roles.length && <span>not running</span>}
      {props.roles.length > 0 && props.facts.map((fact, index) => fact && <span key={index}>{fact}</span>)}
    </a>
  );
}

const Arrow = (props: { to: "right" | "down" | "left" | "up"; rate: string; what: string | null }): JSX.Element => (
  <div class={`arrow ${props.to}`}>
    <span>{props.rate}</span><i aria-hidden="true" /><small class="quiet">{props.what ?? " "}</small>
  </div>
);

function Shares(props: { title: string; shares?: Record<string, number>; words: Record<string, string> }): JSX.Element {
  return <Panel title={props.title}>
    {!props.shares && <p class="quiet">Not known yet.</p>}
    {Object.entries(props.shares ?? {}).map(([name, share]) => (
      <Meter key={name} label={props.words[name] ?? name} share={share} text={percent(share)} />
    ))}
  </Panel>;
}

function Ledger({ shards }: { shards: Role[] }): JSX.Element {
  const lost = sum(shards, "unaccounted_fragments");
  const facts: [string, string][] = [
    ["held", bytes(sum(shards, "held_payload_bytes"))], ["on disk", bytes(sum(shards, "payload_disk_bytes"))],
    ["coming", `${number(sum(shards, "coming_steps"))} steps`],
    ["room for", `${number(sum(shards, "capacity_steps"))} steps`],
    ["oldest lease", duration(Math.max(0, ...shards.map(({ stats }) => stats.oldest_lease_seconds ?? 0)))],
    ["not synced for", duration(Math.max(0, ...shards.map(({ stats }) => stats.unsynced_seconds ?? 0)))],
  ];
  return <Panel title="Replay's ledger" aside={lost ? "⚠ it does not add up" : lost === 0 ? "✓ it adds up" : ""}>
    <Table label="Replay's ledger" head={["Bucket", "Fragments", "Steps"]}
      rows={BUCKETS.map((name) => [name, count(sum(shards, `${name}_fragments`)), count(sum(shards, `${name}_steps`))])}
    />
    <Facts look="facts" facts={facts} />
  </Panel>;
}
