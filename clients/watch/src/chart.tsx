// One chart: many series over one axis, with cursor and zoom shared among all charts of the page.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Axis } from "./api";
import { duration, number, ticks } from "./units";

export interface Series {
  label: string; color: string; dash: number[]; x: number[]; y: (number | null)[]; smooth: (number | null)[];
}

export interface Mark { kind: keyof typeof SIGNS; color: string; x: number; y?: number; text: string }

export type Range = [number, number] | null;

const HEIGHT = 232;
export const SIGNS = { restart: "R", change: "C", checkpoint: "▲", evaluation: "□" };
const sync = uPlot.sync("watch");
const WALL_INCREMENTS = [1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];
/** The value of a colour: a canvas understands no variables. */
export const css = (name: string): string => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** An exponential moving average, without the pull of its start. */
export function smoothed(values: (number | null)[], weight: number): (number | null)[] {
  if (weight === 0) return values;
  let [mean, mass] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    mean = weight * mean + (1 - weight) * value;
    mass = weight * mass + 1 - weight;
    return mean / mass;
  });
}

/** The value at the place that is nearest to `x` among those that have one. */
function nearest(xs: number[], ys: (number | null)[], x: number): number | null {
  let [low, high] = [0, xs.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((xs[middle] as number) < x) low = middle + 1;
    else high = middle;
  }
  let reach = 0;
  while (reach < xs.length && (ys[low - reach] ?? ys[low + reach] ?? null) === null) reach++;
  return ys[low - reach] ?? ys[low + reach] ?? null;
}

export const position = (axis: Axis, x: number): string =>
  axis === "wall_s" ? duration(x) : axis === "env_steps" ? `${number(x)} steps` : `iteration ${number(Math.round(x))}`;

const last = (values: (number | null)[]): number | null => values.findLast((value) => value !== null) ?? null;

function drawMarks({ ctx, bbox, valToPos }: uPlot, marks: Mark[]): void {
  const [ratio, bottom] = [devicePixelRatio, bbox.top + bbox.height];
  ctx.save();
  const [left, width] = [bbox.left - 6 * ratio, bbox.width + 12 * ratio]; // A sign at the very edge is drawn whole.
  ctx.clip(new Path2D(`M${left} ${bbox.top}h${width}v${bbox.height}h${-width}Z`));
  ctx.lineWidth = ratio;
  [ctx.textAlign, ctx.textBaseline] = ["center", "middle"];
  ctx.font = `600 ${10 * ratio}px system-ui`;
  for (const { kind, color, x: value, y } of marks) {
    const x = Math.round(valToPos(value, "x", true));
    const hasLine = kind === "restart" || kind === "change";
    ctx.strokeStyle = ctx.fillStyle = color;
    ctx.setLineDash(kind === "restart" ? [] : [2 * ratio, 3 * ratio]);
    if (hasLine) ctx.stroke(new Path2D(`M${x} ${bbox.top}V${bottom}`));
    const aside = hasLine ? (kind === "change" ? 17 : 7) * ratio : 0; // A change comes with a restart: beside its sign.
    const height = hasLine ? bbox.top + 6 * ratio : kind === "checkpoint" ? bottom - 5 * ratio : valToPos(y ?? NaN, "y", true);
    ctx.fillText(SIGNS[kind], x + aside, height);
  }
  ctx.restore();
}

export interface ChartProps {
  title: string; axis: Axis; series: Series[]; marks: Mark[]; range: Range; full: Range; isLog: boolean; theme: string;
  zoom: (range: Range) => void;
}

function options(props: ChartProps, width: number, current: { props: ChartProps }, hover: (u: uPlot) => void): uPlot.Options {
  const look = { stroke: css("--quiet"), grid: { stroke: css("--grid"), width: 1 } };
  const axis: uPlot.Axis = { ...look, ticks: { show: false }, font: "11px system-ui", gap: 4 };
  const isWall = props.axis === "wall_s";
  const lines = props.series.flatMap(({ color, dash }): uPlot.Series[] => [
    { stroke: `color-mix(in srgb, ${color} 26%, transparent)`, width: 1, spanGaps: true, points: { show: false } },
    { stroke: color, width: 1.6, dash, spanGaps: true, points: { show: false } },
  ]);
  return {
    width, height: HEIGHT, padding: [8, 18, 0, 0], legend: { show: false },
    cursor: {
      sync: { key: sync.key, scales: ["x", null] }, drag: { x: true, y: false, setScale: false },
      points: { show: false }, y: false,
    },
    scales: {
      x: { time: false, range: (_, low, high) => current.props.range ?? current.props.full ?? [low ?? 0, high ?? 1] },
      y: { distr: props.isLog ? 3 : 1 },
    },
    axes: [
      {
        ...axis, size: 22, ...(isWall && { incrs: WALL_INCREMENTS }),
        values: (_, splits) => (isWall ? splits.map((x) => (x ? duration(x).replace(/ 0 \w+$/, "") : "0")) : ticks(splits)),
      },
      { ...axis, size: 48, values: (_, splits) => (props.isLog ? splits.map((y) => (y === null ? "" : number(y))) : ticks(splits)) },
    ],
    series: [{}, ...lines],
    hooks: {
      setCursor: [hover], draw: [(u) => drawMarks(u, current.props.marks)],
      setSelect: [(u) => {
        if (u.select.width < 4) return;
        const [from, to] = [u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x")];
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        current.props.zoom([from, to]);
      }],
    },
  };
}

/** Keys on a focused chart: arrows move, + and - zoom, 0 shows all. */
function steer(event: KeyboardEvent, { range, full, zoom }: ChartProps): void {
  const [low, high] = range ?? full ?? [0, 1];
  const span = high - low;
  const moves: Record<string, Range> = {
    ArrowLeft: [low - span / 8, high - span / 8], ArrowRight: [low + span / 8, high + span / 8],
    "+": [low + span / 5, high - span / 5], "-": [low - span / 3, high + span / 3], "0": null,
  };
  const move = moves[event.key];
  if (move === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  if (!move || !full) return zoom(move);
  const [from, to] = [Math.max(full[0], move[0]), Math.min(full[1], move[1])];
  zoom(from >= to || to - from >= full[1] - full[0] ? null : [from, to]);
}

export function Chart(props: ChartProps): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const [values, where] = [useRef<HTMLUListElement>(null), useRef<HTMLSpanElement>(null)];
  const plot = useRef<uPlot | null>(null);
  const current = useRef({ props });
  current.current.props = props;

  const show = (u: uPlot | null) => {
    const { series, axis } = current.current.props;
    const left = u?.cursor.left ?? -1;
    const x = u && left >= 0 ? u.posToVal(left, "x") : null;
    series.forEach((one, index) => {
      const node = values.current?.children[index]?.lastElementChild;
      if (node) node.textContent = number(x === null ? last(one.y) : nearest(one.x, one.y, x));
    });
    if (where.current) where.current.textContent = x === null ? "latest" : position(axis, x);
  };

  const shape = JSON.stringify([props.axis, props.isLog, props.theme, props.series.map((one) => [one.color, one.dash])]);
  useEffect(() => {
    const node = box.current;
    if (!node) return;
    const made = new uPlot(options(props, node.clientWidth, current.current, show), [[]], node);
    plot.current = made;
    const resized = new ResizeObserver(() => made.setSize({ width: node.clientWidth, height: HEIGHT }));
    resized.observe(node);
    return () => (resized.disconnect(), made.destroy(), (plot.current = null));
  }, [shape]);

  useEffect(() => {
    const tables = props.series.flatMap((one): uPlot.AlignedData[] => {
      const positive = (ys: (number | null)[]) => (props.isLog ? ys.map((y) => (y !== null && y > 0 ? y : null)) : ys);
      const isSmooth = one.smooth !== one.y;
      return [[one.x, positive(isSmooth ? one.y : one.y.map(() => null))], [one.x, positive(one.smooth)]];
    });
    const gapless = tables.map((table) => table.map(() => 0 as const));
    plot.current?.setData(tables.length ? uPlot.join(tables, gapless) : [[]]);
    show(plot.current);
  }, [shape, props.series, props.marks, props.range?.join(), props.full?.join()]);

  const summary = props.series.map((one) => `${one.label}: ${number(last(one.y))}`).join("; ");
  return <figure class="chart">
    <figcaption><h3 title={props.title}>{props.title}</h3><span class="where" ref={where} /></figcaption>
    <ul class="values" ref={values} aria-hidden="true">
      {props.series.map((one) => <li key={one.label} title={one.label}>
        <svg width="18" height="8">
          <line x1="0" x2="18" y1="4" y2="4" stroke={one.color} stroke-width="2.5" stroke-dasharray={one.dash.join(" ")} />
        </svg>
        <span class="label">{one.label}</span><b />
      </li>)}
    </ul>
    <div class="plot" ref={box} tabIndex={0} role="img"
      aria-label={`${props.title}, latest: ${summary}. Arrow keys move, plus and minus zoom, 0 shows all.`}
      onKeyDown={(event) => steer(event, props)} onDblClick={() => props.zoom(null)} />
  </figure>;
}
