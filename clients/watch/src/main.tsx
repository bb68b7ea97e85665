// The frame around all views: runs, tabs, theme, keys, and what does not answer.
import "uplot/dist/uPlot.min.css";
import "./page.css";
import { type JSX, render } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { at, type Run, type Status } from "./api";
import { CurvesView } from "./curves";
import { ConfigView, FailuresView, LogsView, MachineView, RunsView } from "./pages";
import { Empty, Facts, Waiting } from "./parts";
import { useFailures, usePoll } from "./polling";
import { RingView, STATE_SIGNS } from "./ring";
import { go, href, set, useRoute, type View, VIEWS } from "./routing";
import { LiveView, SlotsView } from "./slots";

const THEMES = ["auto", "light", "dark"];
const THEME_KEY = "minefleet-watch-theme";
const NAMES = Object.keys(VIEWS) as View[];
const SHORTCUTS: [string, string][] = [
  [`1 … ${NAMES.length}`, "go to a view"], ["/", "search in the view"], ["[ and ]", "the run before, the run after"],
  ["t", "light, dark, or as the system"], ["Esc", "close what is open"],
  ["← → + − 0", "on a chart: move, zoom, show all"], ["?", "these keys"],
];

/** The theme that is chosen, the one that is shown, and the turn to the next choice. */
function useTheme(): [string, string, () => void] {
  const [theme, setTheme] = useState(localStorage.getItem(THEME_KEY) ?? "auto");
  const isDark = theme === "dark" || (theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  const shown = (document.documentElement.dataset.theme = isDark ? "dark" : "light");
  const next = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length] ?? "auto";
  return [theme, shown, () => (localStorage.setItem(THEME_KEY, next), setTheme(next))];
}

/** Focuses the view's search, and opens the list that it is in. */
function search(): void {
  const field = document.querySelector<HTMLInputElement>("main input[type=search]");
  const closed = field?.closest("details");
  if (closed) closed.open = true;
  field?.focus();
  field?.select();
}

function App(): JSX.Element {
  const { view, params } = useRoute();
  const [theme, shown, turn] = useTheme();
  const listing = usePoll<{ runs: Run[] }>("api/runs", 5000);
  const help = useRef<HTMLDialogElement>(null);
  const runs = listing.data?.runs ?? [];
  const named = params.getAll("run");
  const fallback = runs.find((run) => run.is_live) ?? runs[0];
  const chosen = named.flatMap((id) => runs.find((run) => run.id === id) ?? []);
  if (!named.length && fallback) chosen.push(fallback);
  const run = chosen[0];
  const status = usePoll<Status>(run ? at(run.id, "status") : null, view === "ring" || view === "logs" ? 1000 : 5000);
  const choose = (id: string) => set({ run: [id, ...named.slice(1).filter((one) => one !== id)] });
  useEffect(() => {
    const press = (event: KeyboardEvent) => {
      const node = event.target as HTMLElement;
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape" && !document.querySelector("dialog[open], .popover[open]")) set({ slot: null });
      if (event.key === "Escape" && node.matches("input")) node.blur();
      if (node.matches("input:not([type=checkbox]):not([type=range]), select, textarea")) return;
      const step = { "[": -1, "]": 1 }[event.key];
      if (step && run) {
        choose(runs.at((runs.indexOf(run) + step) % runs.length)?.id ?? run.id);
      } else if (/^[1-9]$/.test(event.key)) {
        go(NAMES[Number(event.key) - 1] ?? "runs");
      } else if (event.key === "/") search();
      else if (event.key === "?") help.current?.showModal();
      else if (event.key === "t") turn();
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  document.title = `${run ? `${run.id} · ` : ""}${VIEWS[view]} · minefleet watch`;
  useEffect(() => document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" }), [view]);
  return <>
    <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), document.querySelector("main")?.focus())}>
      Skip to the view
    </a>
    <header class="head">
      <a class="brand" href={href("runs")}>minefleet</a>
      <label class="choice run">
        <span class={run?.is_live ? "good" : "quiet"}>{run?.is_live ? "● live" : "○ ended"}</span>
        <select aria-label="Run" value={run?.id ?? ""} disabled={!run} onChange={(event) => choose(event.currentTarget.value)}>
          {runs.map(({ id }) => <option key={id} value={id}>{id}</option>)}
        </select>
      </label>
      <nav aria-label="Views">
        {NAMES.map((name) => <a key={name} href={href(name)} aria-current={name === view ? "page" : undefined}>
          {VIEWS[name]}
          {name === "curves" && chosen.length > 1 && <small> {chosen.length}</small>}
        </a>)}
      </nav>
      <div class="ends">
        <button type="button" class="toggle" onClick={turn} title="Light, dark, or as the system (t)" aria-label={`Theme: ${theme}`}>
          {{ auto: "◐", light: "☀", dark: "☾" }[theme]}
        </button>
        <button type="button" class="toggle" onClick={() => help.current?.showModal()} aria-label="Keys (?)">?</button>
      </div>
    </header>
    <Banner status={run?.is_live ? status.data : undefined} />
    <main id="main" tabIndex={-1} aria-label={VIEWS[view]} class={`view-${view}`}>
      {listing.data ? (
        <Content view={view} runs={runs} chosen={chosen} params={params} theme={shown} status={status} missing={named} />
      ) : <Waiting />}
    </main>
    <dialog ref={help} aria-label="Keys" onClick={(event) => event.target === help.current && help.current?.close()}>
      <h2>Keys</h2>
      <Facts look="keys" facts={SHORTCUTS} />
      <button type="button" onClick={() => help.current?.close()}>Close</button>
    </dialog>
  </>;
}

function Banner({ status }: { status: Status | undefined }): JSX.Element {
  const outages = useFailures();
  const roles = outages.length ? [] : (status?.roles ?? []).filter(({ state }) => !(state in STATE_SIGNS));
  const paused = (status?.roles ?? []).filter(({ name, state }) => name.startsWith("learner") && state === "paused");
  const texts = [
    ...outages,
    ...paused.map(({ detail }) => `Training is paused: ${detail}.`),
    ...roles.map(({ name, state, detail }) => `${name} is ${state}${detail && `: ${detail}`}. Its numbers come back when it does.`),
  ];
  return <div class="banner" role="alert" hidden={!texts.length}>{texts.map((text) => <p key={text}>⚠ {text}</p>)}</div>;
}

function Content(props: {
  view: View; runs: Run[]; chosen: Run[]; params: URLSearchParams; theme: string;
  status: ReturnType<typeof usePoll<Status>>; missing: string[];
}): JSX.Element {
  const { view, runs, chosen, params, status } = props;
  const run = chosen[0]?.id;
  if (view === "machine") return <MachineView />;
  if (view === "runs" || !runs.length) return <RunsView runs={runs} chosen={chosen.map(({ id }) => id)} params={params} />;
  if (run === undefined)
    return <Empty title="This run is not here">There is no run “{props.missing[0]}”. Choose one under Runs (key 1).</Empty>;
  if (view === "curves") return <CurvesView runs={chosen} params={params} theme={props.theme} />;
  if (view === "slots") return <SlotsView run={run} params={params} />;
  if (view === "live") return <LiveView run={run} params={params} />;
  if (view === "failures") return <FailuresView run={run} params={params} />;
  if (view === "ring") return <RingView status={status} />;
  if (view === "logs") return <LogsView run={run} params={params} status={status} />;
  return <ConfigView run={run} runs={runs} params={params} />;
}

render(<App />, document.getElementById("page") as HTMLElement);
