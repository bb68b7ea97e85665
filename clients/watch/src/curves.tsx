// Curves of one run or of several over each other.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { at, type Axis, type Curves, type Difference, type Marks, type Place, type Run, type RunDetails } from "./api";
import { Chart, css, type Mark, position, type Range, type Series, SIGNS, smoothed } from "./chart";
import { Choice, Empty, Panel, Picker, Table, Toggle, toggled, Waiting } from "./parts";
import { usePolls } from "./polling";
import { set } from "./routing";
import { count, number, plain } from "./units";

const FIRST = ["episode_return_mean", "episode_length_mean", "sps", "entropy", "approx_kl", "explained_variance"];
const AXES: [Axis, string][] = [["env_steps", "environment steps"], ["wall_s", "wall time"], ["iteration", "iterations"]];
const [POINTS, COLORS] = [1000, 6];
const DASHES = [[], [6, 3], [2, 2], [9, 3, 2, 3]];
const LEGEND = Object.entries(SIGNS).map(([kind, sign]) => `${sign} ${kind}`).join(" · ");
const RETURNS = /(episode|eval)_return/;

const nameOf = (index: number): string => `--c${index % COLORS}`;
export const colorOf = (index: number): string => `var(${nameOf(index)})`;
const dashOf = (index: number): number[] => DASHES[index % DASHES.length] ?? [];

interface Known { run: Run; index: number; details?: RunDetails; curves?: Curves; marks?: Marks }

/** `tasks.*.return_mean` for `tasks.door.return_mean`, where door is a task. */
function family(key: string, tasks: string[]): string {
  const task = tasks.filter((name) => name && `.${key}.`.includes(`.${name}.`)).sort((a, b) => b.length - a.length)[0];
  return task === undefined ? key : `.${key}.`.replace(`.${task}.`, ".*.").slice(1, -1);
}

const members = (key: string, { details }: Known): string[] =>
  key.includes("*") ? (details?.tasks ?? []).map((task) => key.replace("*", () => task)) : [key];

/** Where a mark stands on the axis; between rows where the file has only its iteration. */
function along(place: Place, axis: Axis, curves: Curves): number | null {
  const known = place[axis];
  if (known !== undefined) return known;
  const after = curves.iteration.findIndex((iteration) => iteration >= place.iteration);
  if (after < 0) return null;
  const [i, j] = [Math.max(0, after - 1), after];
  const [x, y] = [curves.iteration[i] ?? 0, curves.iteration[j] ?? 0];
  const share = y > x ? Math.max(0, (place.iteration - x) / (y - x)) : 1;
  return (curves[axis][i] ?? 0) + share * ((curves[axis][j] ?? 0) - (curves[axis][i] ?? 0));
}

function marksOf({ run, index, marks, curves }: Known, axis: Axis): Mark[] {
  if (!marks || !curves) return [];
  const made: Mark[] = [];
  const add = (kind: Mark["kind"], place: Place, text: string, y?: number | null) => {
    const x = along(place, axis, curves);
    if (x !== null) made.push({ kind, x, color: css(nameOf(index)), text: `${run.id}: ${text}`, y: y ?? undefined });
  };
  for (const one of marks.restarts ?? []) add("restart", one, one.what);
  for (const one of marks.config_changes ?? [])
    add("change", one, one.keys.map(({ key, old, new: now }) => `${key} ${plain(old)} → ${plain(now)}`).join(", "));
  for (const one of marks.checkpoints ?? []) add("checkpoint", one, `checkpoint ${one.name}`);
  for (const one of marks.evaluations ?? [])
    add("evaluation", one, `evaluation of version ${one.policy_version}: ${number(one.return_mean)}`, one.return_mean);
  return made;
}

export function CurvesView(props: { runs: Run[]; params: URLSearchParams; theme: string }): JSX.Element {
  const { runs, params } = props;
  const axis = AXES.find(([name]) => name === params.get("axis"))?.[0] ?? "env_steps";
  const weight = Math.min(0.99, Math.max(0, Number(params.get("smooth") ?? 0.9) || 0));
  const withMarks = params.get("marks") !== "off";
  const ends = ["from", "to"].map((name) => params.get(name));
  const range: Range = ends[0] && ends[1] ? [Number(ends[0]), Number(ends[1])] : null;
  const isLive = runs.some((run) => run.is_live);
  const urls = (make: (run: Run) => string) => Object.fromEntries(runs.map((run) => [run.id, make(run)]));

  const details = usePolls<RunDetails>(urls((run) => at(run.id)), 30_000);
  const marks = usePolls<Marks>(urls((run) => at(run.id, "marks")), isLive ? 10_000 : 60_000);
  const differences = usePolls<Difference>(
    Object.fromEntries(runs.slice(1).map((run) => [run.id, at(runs[0]?.id ?? "", "difference", run.id)])), 60_000,
  );
  const partly: Known[] = runs.map((run, index) => ({ run, index, details: details[run.id]?.data }));
  const all = [...new Set(partly.flatMap(({ details }) => details?.keys ?? []))];
  const tasks = [...new Set(partly.flatMap(({ details }) => details?.tasks ?? []))];
  const families = [...new Set(all.map((key) => family(key, tasks)).filter((key) => key.includes("*")))].sort();
  const keys = params.has("key") ? params.getAll("key") : FIRST.filter((key) => all.includes(key));
  const part = range ? `&from=${range[0]}&to=${range[1]}` : "";
  const curveUrl = (one: Known) => {
    const wanted = keys.flatMap((key) => members(key, one)).map((key) => `&key=${encodeURIComponent(key)}`);
    return `${at(one.run.id, "curves")}?axis=${axis}&points=${POINTS}${part}${wanted.join("")}`;
  };
  const asked = all.length ? Object.fromEntries(partly.map((one) => [one.run.id, curveUrl(one)])) : {};
  const curves = usePolls<Curves>(asked, isLive ? 5000 : 60_000);
  const known = partly.map((one) => ({ ...one, curves: curves[one.run.id]?.data, marks: marks[one.run.id]?.data }));
  const reach = known.flatMap(({ curves }) => (curves ? [curves[axis][0] ?? 0, curves[axis].at(-1) ?? 0] : []));
  const [first, end] = [Math.min(...reach), Math.max(...reach)]; // One row alone has no width, for which uPlot finds no ticks.
  const full: Range = range === null && reach.length ? [first, Math.max(end, first + 1)] : null;
  const [widest, setWidest] = useState<{ axis: Axis; full: Range }>({ axis, full: null });
  if (full && (widest.axis !== axis || widest.full?.join() !== full.join())) setWidest({ axis, full });

  const charts = useMemo(() => {
    const drawn = withMarks ? known.flatMap((one) => marksOf(one, axis)) : [];
    return keys.map((key) => {
      const series = known.flatMap((one) => members(key, one).flatMap((member, nth): Series[] => {
          const y = one.curves?.columns[member];
          if (!one.curves || !y?.some((value) => value !== null)) return [];
          const isFamily = key.includes("*");
          const task = one.details?.tasks[nth] ?? "";
          const byTask = isFamily && runs.length === 1;
          return [{
            label: byTask ? task : isFamily ? `${one.run.id} ${task}` : one.run.id,
            color: css(nameOf(byTask ? nth : one.index)),
            dash: dashOf(byTask ? Math.floor(nth / COLORS) : isFamily ? nth : Math.floor(one.index / COLORS)),
            x: one.curves[axis], y, smooth: smoothed(y, weight),
          }];
        }));
      return { key, series, marks: drawn.filter((mark) => mark.kind !== "evaluation" || RETURNS.test(key)) };
    });
  }, [curves, marks, details, keys.join("\n"), weight, withMarks, props.theme, axis, runs.map((run) => run.id).join("\n")]);

  if (!all.length) return <Waiting error={runs.map((run) => details[run.id]?.error).find(Boolean)} />;
  const zoom = (to: Range) => set({ from: to && to[0].toPrecision(8), to: to && to[1].toPrecision(8) });
  const logs = params.getAll("log");
  const rows = known.reduce((sum, { curves }) => sum + (curves?.total ?? 0), 0);
  const shown = known.reduce((sum, { curves }) => sum + (curves?.iteration.length ?? 0), 0);
  const listed = (charts[0]?.marks ?? []).concat(charts.find(({ key }) => RETURNS.test(key))?.marks ?? []);
  const unique = [...new Map(listed.map((mark) => [mark.text + mark.x, mark])).values()].sort((a, b) => a.x - b.x);
  return <>
    <div class="tools">
      <Picker label={`Charts (${keys.length})`} search="Search keys of metrics.jsonl" name="key" chosen={keys} most={24}
        items={[...families, ...all].map((key) => [key, key.includes("*") ? "each task" : ""])} />
      <Choice label="over" name="axis" value={axis} options={AXES} />
      <label class="choice">
        <span>smoothing</span>
        <input type="range" min="0" max="0.99" step="0.01" value={weight}
          onInput={(event) => set({ smooth: event.currentTarget.value })} />
        <output>{weight.toFixed(2)}</output>
      </label>
      <Toggle on={withMarks} label="Marks" act={() => set({ marks: withMarks ? "off" : null })} />
      <button type="button" disabled={!range} onClick={() => zoom(null)} title="0, or a double click">Show all</button>
      <span class="quiet note">{count(shown)} of {count(rows)} rows</span>
      {withMarks && <span class="quiet note">{LEGEND}</span>}
    </div>
    {keys.length === 0 && <Empty title="No chart is chosen">Choose keys with “Charts”, or press / to search them.</Empty>}
    <div class="charts">
      {charts.map(({ key, series, marks }) => <div key={key} class="panel">
        <Chart title={key} axis={axis} series={series} marks={marks} range={range}
          full={widest.axis === axis ? (widest.full ?? full) : full} isLog={logs.includes(key)}
          theme={props.theme} zoom={zoom} />
        <div class="corner">
          <Toggle on={logs.includes(key)} label="log" title="A logarithmic scale; values of 0 and less are left out"
            act={() => set({ log: toggled(logs, key) })} />
          <button type="button" class="toggle" aria-label={`Close ${key}`} onClick={() => set({ key: toggled(keys, key) })}>×</button>
        </div>
        {curves[runs[0]?.id ?? ""]?.data && series.length === 0 && <p class="over quiet">No row has this key here.</p>}
      </div>)}
    </div>
    {runs.length > 1 && <Differences runs={runs} differences={differences} />}
    {withMarks && unique.length > 0 && <details class="panel fold">
      <summary>Marks ({unique.length})</summary>
      <Table label="Marks" head={["At", "Kind", "Of"]} left={[1, 2]}
        rows={unique.map((mark) => [position(axis, mark.x), mark.kind, mark.text])} />
    </details>}
  </>;
}

export function Differences(props: { runs: Run[]; differences: Record<string, { data?: Difference }> }): JSX.Element {
  const [first, ...others] = props.runs;
  const of = (run: Run) => props.differences[run.id]?.data?.keys ?? [];
  const keys = [...new Set(others.flatMap((run) => of(run).map(({ key }) => key)))].sort();
  const base = (key: string) => others.flatMap(of).find((one) => one.key === key)?.this;
  const rows = keys.map((key) => [
    <code key={key}>{key}</code>, plain(base(key)),
    ...others.map((run) => {
      const found = of(run).find((one) => one.key === key);
      return found ? <b key={run.id}>{plain(found.other)}</b> : <span class="quiet">the same</span>;
    }),
  ]);
  return <Panel title="Differences in configuration" aside={`${keys.length} keys`}>
    {!keys.length && <p class="quiet">These runs have the same configuration.</p>}
    {keys.length > 0 && <Table label="Differences in configuration" rows={rows}
      head={["Key", first?.id ?? "", ...others.map((run) => run.id)]} left={props.runs.map((_, index) => index + 1)} />}
  </Panel>;
}
