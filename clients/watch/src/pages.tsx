// Runs, failures, roles and logs, configuration, machine.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { at, type Difference, type Failures, type Machine, type Run, type RunDetails, type Status } from "./api";
import { colorOf } from "./curves";
import { Choice, Empty, Facts, has, Marked, Meter, Panel, Search, Table, Toggle, toggled, Waiting } from "./parts";
import { type Answer, asText, usePoll } from "./polling";
import { STATE_SIGNS } from "./ring";
import { go, href, set } from "./routing";
import { LastFrame } from "./slots";
import { ago, bytes, count, duration, flat, number, percent, plain } from "./units";

export function RunsView(props: { runs: Run[]; chosen: string[]; params: URLSearchParams }): JSX.Element {
  const { runs, chosen } = props;
  const query = props.params.get("q") ?? "";
  const found = runs.filter(({ id, env }) => has(`${id} ${env}`, query));
  const choose = (id: string) => set({ run: toggled(chosen, id) });
  const act = chosen.length > 1 ? `Compare ${chosen.length} runs` : "Show its curves";
  const color = (id: string) => (chosen.includes(id) ? colorOf(chosen.indexOf(id)) : "transparent");
  if (!runs.length)
    return <Empty title="There is no run here yet">
      Start one with <code>minefleet train CartPole-v1</code>, or name others: <code>minefleet watch DIR …</code>. It appears by itself.
    </Empty>;
  return <>
    <div class="tools">
      <Search label="Search runs and environments" value={query} />
      <button type="button" class="main" disabled={!chosen.length} onClick={() => go("curves")}>{act}</button>
      <span class="quiet note">{found.length} of {runs.length} runs, {runs.filter((run) => run.is_live).length} live</span>
    </div>
    {found.length === 0 && <Empty title="No run matches">Nothing has “{query}” in its name or environment.</Empty>}
    {found.length > 0 && <div class="panel">
      <Table label="Runs" head={["Run", "State", "Environment", "Return", "Steps", "Iteration", "Time", "Written"]}
        left={[1, 2]} keys={found.map(({ id }) => id)} rows={found.map((run) => [
          <label class="pick" key={run.id}>
            <input type="checkbox" checked={chosen.includes(run.id)} onChange={() => choose(run.id)} />
            <i class="swatch" style={{ background: color(run.id) }} />
            <a href={href("curves", { run: run.id })} title={run.directory}>{run.id}</a>
          </label>, run.is_live ? <b class="good">● live</b> : <span class="quiet">○ ended</span>, run.env,
          number(run.episode_return_mean), count(run.env_steps), count(run.iteration), duration(run.wall_s),
          ago(run.updated_s),
        ])} />
    </div>}
  </>;
}

export function FailuresView(props: { run: string; params: URLSearchParams }): JSX.Element {
  const { data, error } = usePoll<Failures>(at(props.run, "failures"), 2000);
  if (!data) return <Waiting error={error} />;
  const kind = props.params.get("kind") ?? "";
  const kinds = Object.entries(data.by_kind).sort(([, a], [, b]) => b - a);
  const total = kinds.reduce((all, [, times]) => all + times, 0);
  const episodes = data.episodes.filter(({ failure }) => !kind || failure === kind);
  const slots = data.slots.filter((slot) => !kind || slot.kind === kind).sort((a, b) => b.failures - a.failures);
  if (!total && !episodes.length && !slots.length)
    return <Empty title="Nothing has failed">No environment of this run has died, hung or raised. It would be listed here.</Empty>;
  return <>
    <Panel title="Kinds" aside={`${count(total)} failed episodes, up to the last iteration`}>
      {kinds.map(([name, times]) => <button type="button" key={name} class="row" aria-pressed={kind === name}
        onClick={() => set({ kind: kind === name ? null : name })}>
        <Meter label={name} share={times / Math.max(1, total)} text={`${count(times)}, ${percent(times / Math.max(1, total))}`} />
      </button>)}
    </Panel>
    <Panel title="Slots that fail" aside={kind ? `only ${kind}` : `${count(slots.reduce((all, { failures }) => all + failures, 0))} failures of ${slots.length} slots, up to now`}>
      {slots.length === 0 && <p class="quiet">No running slot has such a failure.</p>}
      {slots.map((slot) => <details class="failure" key={`${slot.actor}/${slot.slot}`}>
        <summary>
          <b>{slot.actor}/{slot.slot}</b><span>{slot.kind}</span>
          <span class="quiet last">{slot.text.trim().split("\n").filter(Boolean).at(-1)}</span>
          <span class="right">{count(slot.failures)} ✕</span><span class="right quiet">{duration(slot.age_s)} ago</span>
        </summary>
        <div class="evidence">
          {slot.has_frame && <LastFrame run={props.run} {...slot} />}<pre tabIndex={0}>{slot.text}</pre>
        </div>
        <p class="links">
          <a href={href("slots", { slot: `${slot.actor}/${slot.slot}` })}>The slot now</a>
          <a href={href("live", { pick: `${slot.actor}/${slot.slot}` })}>Watch it live</a>
          <a href={href("logs", { log: `${slot.actor}.log`, q: `slot ${slot.slot}` })}>Its lines in the log</a>
        </p>
      </details>)}
    </Panel>
    <Panel title="Newest failed episodes" aside={`${episodes.length} episodes`}>
      <Table label="Failed episodes" head={["Iteration", "Task", "Failure", "Stream", "Length", "Return"]}
        left={[1, 2, 3]} rows={episodes.map((one) => [
          count(one.iteration), one.task || "–", one.failure, one.stream, `${count(one.length)} steps`,
          number(one.episode_return),
        ])} />
    </Panel>
  </>;
}

export function LogsView({ run, params, status }: { run: string; params: URLSearchParams; status: Answer<Status> }): JSX.Element {
  const logs = usePoll<{ logs: { name: string; bytes: number }[] }>(at(run, "logs"), 10_000);
  const names = logs.data?.logs.map(({ name }) => name) ?? [];
  const role = params.get("role");
  const log = params.get("log") ?? names.find((name) => role && name.startsWith(role)) ?? names[0];
  const roles = status.data?.roles ?? [];
  const look = (state: string) => (state === "running" ? "good" : state in STATE_SIGNS ? "" : "bad");
  return <>
    <Panel title="Roles" aside={`${roles.filter(({ state }) => state in STATE_SIGNS).length} of ${roles.length} up`}>
      {roles.length === 0 && <p class="quiet">No role of this run is running.</p>}
      {roles.length > 0 && <Table label="Roles" left={[1]} keys={roles.map(({ name }) => name)}
        head={["Role", "State", "Up for", "Processor time", "Address", "Process"]} rows={roles.map((one) => [
          one.name,
          <span key="state" class={look(one.state)}>
            {STATE_SIGNS[one.state] ?? "✕"} {one.detail.startsWith(one.state) ? one.detail : one.state + (one.detail && `: ${one.detail}`)}
          </span>, duration(one.uptime_s || null), duration(one.stats.processor_seconds), one.address || "–", one.pid,
        ])} />}
    </Panel>
    <Panel title="Log" aside={log && bytes(logs.data?.logs.find(({ name }) => name === log)?.bytes)}>
      {!names.length && <p class="quiet">{logs.error ?? (logs.data ? "This run has no logs yet." : "Reading…")}</p>}
      {log !== undefined && <LogTail run={run} log={log} names={names} params={params} />}
    </Panel>
  </>;
}

function LogTail(props: { run: string; log: string; names: string[]; params: URLSearchParams }): JSX.Element {
  const [query, size] = [props.params.get("q") ?? "", props.params.get("bytes") ?? "65536"];
  const { data, error } = usePoll<string>(`${at(props.run, "logs", props.log)}?bytes=${size}`, 2000, asText);
  const [follows, setFollows] = useState(true);
  const box = useRef<HTMLPreElement>(null);
  const look = (line: string) => (/\b(ERROR|CRITICAL|Traceback)\b/.test(line) ? "bad" : /\bWARNING\b/.test(line) ? "warn" : "");
  let last = ""; // A line without a time goes on with the record before it.
  const lines = (data?.split("\n") ?? []).map((line): [string, string] => [line, (last = look(line) || (/^\d{4}-/.test(line) ? "" : last))]);
  const found = lines.filter(([line]) => has(line, query));
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  }, [data, follows, query, props.log]);
  return <>
    <div class="tools">
      <Choice label="file" name="log" value={props.log} options={props.names.map((name) => [name, name])} />
      <Choice label="the last" name="bytes" value={size}
        options={[65_536, 262_144, 1_048_576].map((size) => [String(size), bytes(size)])} />
      <Search label="Search this tail" value={query} />
      <Toggle on={follows} label="Follow" act={() => setFollows(!follows)} />
      <span class="quiet note">{count(found.length)} of {count(lines.length)} lines</span>
    </div>
    {error && <p class="warning">⚠ {error}</p>}
    <pre class="log" ref={box} tabIndex={0} aria-label={`The end of ${props.log}`}
      onScroll={({ currentTarget: it }) => setFollows(it.scrollHeight - it.scrollTop - it.clientHeight < 24)}>
      {found.map(([line, level], index) => <div key={index} class={level}><Marked text={line} query={query} /></div>)}
      {data !== undefined && !found.length && "No line of this tail has it: take a longer one."}
    </pre>
  </>;
}

export function ConfigView(props: { run: string; runs: Run[]; params: URLSearchParams }): JSX.Element {
  const { params } = props;
  const query = params.get("q") ?? "";
  const others = props.runs.filter(({ id }) => id !== props.run);
  const other = others.find(({ id }) => id === params.get("other"))?.id ?? null;
  const { data, error } = usePoll<RunDetails>(at(props.run), 30_000);
  const difference = usePoll<Difference>(other && at(props.run, "difference", other), 60_000);
  if (!data) return <Waiting error={error} />;
  const all: [string, unknown, unknown?][] = other
    ? (difference.data?.keys ?? []).map((one) => [one.key, one.this, one.other])
    : flat(data.config);
  const found = all.filter((row) => has(`${row[0]} ${row.slice(1).map(plain).join(" ")}`, query));
  return <>
    <div class="tools">
      <Search label="Search keys and values" value={query} />
      <Choice label="differences to" name="other" value={other ?? ""}
        options={[["", "no run: all keys"], ...others.map(({ id }): [string, string] => [id, id])]} />
      <span class="quiet note">{found.length} of {all.length} keys</span>
    </div>
    <Panel title={other ? "Keys that differ" : "Configuration"} aside={<code>{data.directory}</code>}>
      {found.length > 0 && <Table label="Configuration" head={["Key", ...(other ? [props.run, other] : ["Value"])]}
        left={[1, 2]} keys={found.map(([key]) => key)} rows={found.map((row) => row.map((value, index) => (
          <code key={index} class="cell"><Marked text={index ? plain(value) : String(value)} query={query} /></code>
        )))} />}
      {found.length === 0 && <p class="quiet">{difference.error ?? (all.length ? "No key or value has it." : "None differs.")}</p>}
    </Panel>
    <Panel title="Files">
      <Facts look="facts wide" facts={Object.entries(data.files).map(([name, path]) => [name, <code key={name}>{path}</code>])} />
    </Panel>
  </>;
}

const Filled = ({ label, used, of }: { label: string; used: number; of: number }): JSX.Element => (
  <Meter label={label} share={used / of} text={`${bytes(used)} of ${bytes(of)}, ${percent(used / of)}`} warnAt={0.9} />
);

export function MachineView(): JSX.Element {
  const { data, error } = usePoll<Machine>("api/machine", 1000);
  if (!data) return <Waiting error={error} />;
  return <div class="columns">
    <Panel title="Processor" aside={`${data.cores} cores`}>
      <Meter label="busy" share={data.cpu_share} text={`${(data.cpu_share * data.cores).toFixed(1)} cores, ${percent(data.cpu_share)}`} />
    </Panel>
    <Panel title="Memory" aside={bytes(data.memory_bytes)}>
      <Filled label="used" used={data.memory_used_bytes} of={data.memory_bytes} />
    </Panel>
    <Panel title="Disk of the runs" aside={`${bytes(data.disk_free_bytes)} free`}>
      <Filled label="used" used={data.disk_bytes - data.disk_free_bytes} of={data.disk_bytes} />
    </Panel>
    {data.gpus.map((gpu, index) => <Panel key={index} title={`GPU ${index}`} aside={gpu.name}>
      {gpu.use_share !== null && <Meter label="busy" share={gpu.use_share} text={percent(gpu.use_share)} />}
      <Filled label="memory" used={gpu.memory_used_bytes} of={gpu.memory_bytes} />
    </Panel>)}
    {!data.gpus.length && <Panel title="GPU"><p class="quiet">This machine has none that the server sees.</p></Panel>}
  </div>;
}
