// The whole state of the page is in the address, so that a view can be sent to a colleague.
import { useEffect, useState } from "preact/hooks";

export const VIEWS = {
  runs: "Runs", curves: "Curves", slots: "Slots", live: "Live", failures: "Failures", ring: "Ring",
  logs: "Roles & logs", config: "Configuration", machine: "Machine",
} as const;
export type View = keyof typeof VIEWS;
export type Change = Record<string, string | string[] | null>;

export interface Route { view: View; params: URLSearchParams }

const kept = new Map<View, URLSearchParams>();
const listeners = new Set<() => void>();

export function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: Object.hasOwn(VIEWS, path) ? (path as View) : "runs", params: new URLSearchParams(query) };
}

function changed(params: URLSearchParams, change: Change): URLSearchParams {
  const next = new URLSearchParams(params);
  for (const [name, value] of Object.entries(change)) {
    next.delete(name);
    for (const one of value === null ? [] : [value].flat()) next.append(name, one);
  }
  return next;
}

/** The address of a view of the same runs, as it was left, with these changes. */
export function href(view: View, change: Change = {}): string {
  const now = read();
  const left = view === now.view ? now.params : (kept.get(view) ?? new URLSearchParams());
  const query = changed(left, { run: now.params.getAll("run"), ...change }).toString();
  return `#/${view}${query && `?${query}`}`;
}

export const go = (view: View, change: Change = {}): void => void (location.hash = href(view, change));

/** Changes this view's parameters in place: no entry in the history, since sliders and searches make many. */
export function set(change: Change): void {
  history.replaceState(null, "", href(read().view, change));
  listeners.forEach((listener) => listener());
}

export function useRoute(): Route {
  const [route, setRoute] = useState(read);
  useEffect(() => {
    const listener = () => {
      const next = read();
      kept.set(next.view, next.params);
      setRoute(next);
    };
    listener();
    listeners.add(listener);
    window.addEventListener("hashchange", listener);
    return () => (listeners.delete(listener), window.removeEventListener("hashchange", listener));
  }, []);
  return route;
}
