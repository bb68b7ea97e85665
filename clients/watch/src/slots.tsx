// The pool, slot by slot, and the pictures that the agents see.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { at, type RunDetails, type Slot, type Slots, type Videos } from "./api";
import { Choice, Empty, Facts, has, Panel, Picker, Search, Toggle, toggled, Waiting } from "./parts";
import { poll, usePoll } from "./polling";
import { href, set } from "./routing";
import { ago, bytes, count, duration, number, percent } from "./units";

/** A state's letter and sign: no state is told by its colour alone. */
const STATES: Record<string, [string, string, string]> = {
  stepping: ["S", "▶", "steps its environment"], ready: ["Y", "◆", "waits for the policy's action"],
  blocked: ["B", "■", "waits for a grant, room, weights or other slots"],
  bootstrapping: ["V", "◇", "waits for the value of its last observation"], resetting: ["R", "↻", "starts an episode"],
  resting: ["Z", "✕", "rests after failures in a row"],
};
const [SLOW_S, FRAME_MS, MOST, VIDEO_KEY] = [1, 400, 16, "train_config.record_video_interval"];
/** Longer in one step than ten usual ones, as where it hangs. */
const isLate = ({ state, age_s, step_s }: Slot): boolean => state === "stepping" && age_s > Math.max(SLOW_S, 10 * (step_s ?? 0));
/** Less than half of a slot's steps is trained on, as in the warnings of `minefleet train`. */
const isStarved = (slot: Slot): boolean => slot.trained_share !== null && slot.trained_share < 0.5;

interface Placed extends Slot { actor: string; id: string }

const placed = (slots: Slots | undefined): Placed[] =>
  slots?.actors.flatMap(({ name, slots }) => slots.map((slot) => ({ ...slot, actor: name, id: `${name}/${slot.slot}` }))) ?? [];

const State = ({ name }: { name: string }): JSX.Element => (
  <span class={`state ${name}`}><i aria-hidden="true">{STATES[name]?.[1] ?? "?"}</i> {name}</span>
);

const NoSlots = (): JSX.Element => <Empty title="No actor of this run is running">
  Slots are seen while a run trains. Start it with <code>minefleet train</code>, or choose a run that is live.
</Empty>;

const ActorErrors = ({ slots }: { slots: Slots }): JSX.Element => <>
  {slots.actors.map(({ name, error }) => error && <p key={name} class="warning">⚠ <b>{name}</b>: {error}</p>)}
</>;

export function SlotsView({ run, params }: { run: string; params: URLSearchParams }): JSX.Element {
  const { data, error } = usePoll<Slots>(at(run, "slots"), 1000);
  if (!data) return <Waiting error={error} />;
  const all = placed(data);
  if (!data.actors.length) return <NoSlots />;
  const [states, actor, query] = [params.getAll("state"), params.get("actor") ?? "", params.get("q") ?? ""];
  const flag = (name: string) => ({ on: params.get(name) === "yes", act: () => set({ [name]: flag(name).on ? null : "yes" }) });
  const matches = (slot: Placed) =>
    (!states.length || states.includes(slot.state)) &&
    (!actor || slot.actor === actor) &&
    (!flag("failed").on || slot.failures > 0) && (!flag("starved").on || isStarved(slot)) &&
    has(`${slot.id} ${slot.task} ${slot.reason} ${slot.action} ${slot.last_failure?.kind ?? ""}`, query);
  const found = all.filter(matches);
  const open = all.find(({ id }) => id === params.get("slot"));
  return <>
    <ActorErrors slots={data} />
    <div class="tools">
      <Search label="Search slots, tasks, actions" value={query} />
      <Choice label="actor" name="actor" value={actor}
        options={[["", "all"], ...data.actors.map(({ name }): [string, string] => [name, name])]} />
      <div class="group" role="group" aria-label="States">
        {[...new Set([...Object.keys(STATES), ...all.map(({ state }) => state)])].map((state) => <Toggle key={state} on={states.includes(state)}
          title={STATES[state]?.[2]} act={() => set({ state: toggled(states, state) })}
          label={<><State name={state} /> <b>{all.filter((slot) => slot.state === state).length}</b></>} />)}
        <Toggle {...flag("failed")} label={<>failed <b>{all.filter((slot) => slot.failures > 0).length}</b></>} />
        <Toggle {...flag("starved")} label={<>starved <b>{all.filter(isStarved).length}</b></>} title="less than half of their steps is trained on" />
      </div>
      <span class="quiet note">{found.length} of {all.length} slots. A tile: state, for how long; usual step, failures; task, share of steps trained on</span>
    </div>
    {found.length === 0 && all.length > 0 && <Empty title="No slot matches">
      <button type="button" onClick={() => set({ state: null, actor: null, q: null, failed: null, starved: null })}>Show all</button>
    </Empty>}
    <div class={open ? "beside" : ""}>
      <div class="stack">
        {data.actors.map(({ name }) => {
          const tiles = found.filter((slot) => slot.actor === name);
          const drawn = tiles.map((slot) => <Tile key={slot.id} slot={slot} isOpen={slot.id === open?.id} />);
          return tiles.length > 0 && <Panel key={name} title={name} aside={`${tiles.length} slots`}><div class="tiles">{drawn}</div></Panel>;
        })}
      </div>
      {open && <SlotDetails run={run} slot={open} />}
    </div>
  </>;
}

function Tile({ slot, isOpen }: { slot: Placed; isOpen: boolean }): JSX.Element {
  const [letter, sign] = STATES[slot.state] ?? ["?", "?"];
  return <button type="button" class={`tile ${slot.state}`} aria-pressed={isOpen}
    aria-label={`Slot ${slot.slot}, ${slot.state} ${slot.reason}, for ${duration(slot.age_s)}, ${slot.failures} failures, ${percent(slot.trained_share)} trained on`}
    onClick={() => set({ slot: isOpen ? null : slot.id })}>
    <span class="top"><i aria-hidden="true">{sign}</i><b>{letter}</b><span class="index">{slot.slot}</span></span>
    <span class="line"><span>{slot.reason || slot.state}</span><span class={isLate(slot) ? "late" : ""}>{duration(slot.age_s)}</span></span>
    <span class="line quiet">
      <span class={(slot.step_s ?? 0) > SLOW_S ? "bad" : ""}>{slot.step_s === null ? "–" : `${duration(slot.step_s)}/step`}</span>
      <span class={slot.failures ? "bad" : ""}>{slot.failures ? `${slot.failures} ✕` : ""}</span>
    </span>
    <span class="line quiet">
      <span>{slot.task || " "}</span>
      <span class={isStarved(slot) ? "bad" : ""} title="of its steps is trained on">{percent(slot.trained_share)}</span>
    </span>
  </button>;
}

function SlotDetails({ run, slot }: { run: string; slot: Placed }): JSX.Element {
  const facts: [string, string][] = [
    ["state", `${slot.state}${slot.reason && `: ${slot.reason}`}, for ${duration(slot.age_s)}`],
    ["task", slot.task || "–"], ["episode", `${count(slot.episode_steps)} steps, return ${number(slot.episode_return)}`],
    ["value", number(slot.value)], ["action", slot.action || "–"], ["version", count(slot.version || null)],
    ["step time", duration(slot.step_s)], ["failures", count(slot.failures)],
    ["trained on", `${isStarved(slot) ? "⚠ " : ""}${percent(slot.trained_share)}, ${count(slot.dropped_steps)} steps dropped`], ["stream", slot.stream],
  ];
  return <aside class="panel details" aria-label={`Slot ${slot.id}`}>
    <header>
      <h2>{slot.id}</h2>
      <button type="button" class="toggle" aria-label="Close" onClick={() => set({ slot: null })}>×</button>
    </header>
    <Frame run={run} slot={slot} /><Facts facts={facts} />
    {slot.last_failure && <>
      <h3>Last failure: {slot.last_failure.kind}, {duration(slot.last_failure.age_s)} ago</h3>
      {slot.last_failure.has_frame && <LastFrame run={run} {...slot} />}
      <pre tabIndex={0}>{slot.last_failure.text}</pre>
    </>}
    <p class="links">
      <a href={href("live", { pick: slot.id })}>Watch it live</a>
      <a href={href("logs", { log: `${slot.actor}.log`, q: null })}>Log of {slot.actor}</a>
    </p>
  </aside>;
}

/** The last picture before a slot's last failure; each failure has an address of its own. */
export const LastFrame = (props: { run: string; actor: string; slot: number; failures: number }): JSX.Element => (
  <img class="last-frame" loading="lazy" alt={`The last that ${props.actor}/${props.slot} showed before it failed`}
    src={`${at(props.run, "slots", props.actor, props.slot, "frame")}?of=failure&failure=${props.failures}`} />
);

/** A slot's newest picture, at most a second old; a run without pictures is not asked for any. */
function Frame({ run, slot }: { run: string; slot: Placed }): JSX.Element {
  const [shown, setShown] = useState<{ url?: string; error?: string }>({});
  const hasPictures = usePoll<RunDetails>(at(run), 60_000).data?.has_pictures;
  useEffect(() => {
    let url: string | undefined;
    if (!hasPictures) return;
    const address = at(run, "slots", slot.actor, slot.slot, "frame");
    const stop = poll(address, FRAME_MS, (response) => response.blob(), ({ data, error }) => {
      if (!data?.size) return setShown({ url, error: error ?? "It has only begun to render." });
      if (url) setTimeout(URL.revokeObjectURL, 1000, url);
      url = URL.createObjectURL(data);
      setShown({ url });
    });
    return () => (stop(), url && URL.revokeObjectURL(url), setShown({}));
  }, [run, slot.id, hasPictures]);
  return <div class="frame">
    {shown.url && <img src={shown.url} alt={`What ${slot.id} sees`} />}
    {shown.error && <span class="caption">{shown.error}</span>}
    {hasPictures === false && <span class="caption">The environment shows no pixels: {VIDEO_KEY} above 0 renders it.</span>}
  </div>;
}

const anyOf = (slots: Placed[], most: number) => slots.map(({ id }) => id).sort(() => Math.random() - 0.5).slice(0, most);

export function LiveView({ run, params }: { run: string; params: URLSearchParams }): JSX.Element {
  const { data, error } = usePoll<Slots>(at(run, "slots"), 1000);
  const videos = usePoll<Videos>(at(run, "videos"), 5000).data?.videos ?? [];
  const all = placed(data);
  const picks = params.has("pick") ? params.getAll("pick") : all.slice(0, 8).map(({ id }) => id);
  const chosen = picks.flatMap((id) => all.find((slot) => slot.id === id) ?? []).slice(0, MOST);
  return <>
    {data ? <ActorErrors slots={data} /> : <Waiting error={error} />}
    {data && !all.length && <NoSlots />}
    {all.length > 0 && <div class="tools">
      <Picker label={`Slots (${chosen.length} of ${all.length})`} search="Search slots and tasks" name="pick"
        items={all.map(({ id, task }) => [id, task])} chosen={chosen.map(({ id }) => id)} most={MOST} />
      <button type="button" onClick={() => set({ pick: anyOf(all, 8) })}>8 at random</button>
      <span class="quiet note">pictures are at most a second old; at most {MOST} slots</span>
    </div>}
    {all.length > 0 && !chosen.length && <Empty title="No slot is chosen">Choose some with “Slots”.</Empty>}
    <div class="lives">
      {chosen.map((slot) => <figure key={slot.id} class="panel live">
        <Frame run={run} slot={slot} />
        <figcaption>
          <a class="name" href={href("slots", { slot: slot.id })}>{slot.id}</a>
          <State name={slot.state} />
          <Facts facts={[
            ["return", number(slot.episode_return)], ["value", number(slot.value)], ["version", count(slot.version || null)],
            ["steps", count(slot.episode_steps)], ["action", slot.action || "–"],
          ]} />
        </figcaption>
      </figure>)}
    </div>
    <Panel title="Newest videos" aside={videos.length ? `${videos.length} files` : ""}>
      {videos.length === 0 && <p class="quiet">There is none yet. {VIDEO_KEY} above 0 records episodes.</p>}
      <div class="lives">
        {videos.slice(0, 8).map((video) => <figure key={video.name} class="live">
          <video class="frame" controls preload="metadata" src={at(run, "videos", video.name)} aria-label={video.name} />
          <figcaption>
            <span class="name" title={video.name}>{video.version === undefined ? video.name : `version ${count(video.version)}`}</span>
            {video.episode_return !== undefined && <span>return {number(video.episode_return)}</span>}
            <span class="quiet">{bytes(video.bytes)}, {ago(video.written_s)}</span>
          </figcaption>
        </figure>)}
      </div>
    </Panel>
  </>;
}
