// Asks the server again and again, but only while somebody looks at the page.
import { useEffect, useState } from "preact/hooks";
import { ApiError, get } from "./api";

/** The last answer that came, and why the newest question got none. */
export interface Answer<T> { data?: T; error?: string }

const REFUSED_MS = 5000;
const failing = new Map<string, string>();
const listeners = new Set<() => void>();

function report(url: string, error: string | null): void {
  if (error === null ? !failing.delete(url) : failing.get(url) === error) return;
  if (error !== null) failing.set(url, error);
  listeners.forEach((listener) => listener());
}

/** Sentences about what does not answer now, each once. */
export function useFailures(): string[] {
  const [, redraw] = useState(0);
  useEffect(() => {
    const listener = () => redraw((count) => count + 1);
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return [...new Set(failing.values())];
}

const pause = (ms: number, signal: AbortSignal): Promise<void> =>
  new Promise((done) => {
    const timer = setTimeout(done, ms);
    signal.addEventListener("abort", () => (clearTimeout(timer), done()), { once: true });
  });

async function visible(): Promise<void> {
  while (document.hidden)
    await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/** Reads `url` every `everyMs` until the returned function is called; a frame that is refused, every REFUSED_MS. */
export function poll<T>(
  url: string, everyMs: number, read: (response: Response) => Promise<T>, take: (answer: Answer<T>) => void,
): () => void {
  const stopped = new AbortController();
  const isFrame = url.endsWith("/frame");
  const loop = async () => {
    while (!stopped.signal.aborted) {
      await visible();
      const began = performance.now();
      let waitMs = everyMs;
      try {
        const data = await read(await get(url, stopped.signal));
        if (stopped.signal.aborted) return;
        report(url, null);
        take({ data });
      } catch (error) {
        if (stopped.signal.aborted) return;
        const text = error instanceof Error ? error.message : String(error);
        const isOutage = !(error instanceof ApiError) || error.status === 0 || error.status === 401 || error.status >= 500;
        report(url, isOutage && !isFrame ? text : null);
        take({ error: text });
        if (isFrame) waitMs = REFUSED_MS;
      }
      await pause(Math.max(100, waitMs - (performance.now() - began)), stopped.signal);
    }
  };
  void loop();
  return () => (stopped.abort(), report(url, null));
}

export const asJson = <T>(response: Response): Promise<T> => response.json() as Promise<T>;
export const asText = (response: Response): Promise<string> => response.text();

/** Polls several addresses; an answer stays, under its name, until the next one of that name comes. */
export function usePolls<T>(
  urls: Record<string, string>, everyMs: number, read: (response: Response) => Promise<T> = asJson,
): Record<string, Answer<T>> {
  const [answers, setAnswers] = useState<Record<string, Answer<T>>>({});
  useEffect(() => {
    setAnswers((old) => Object.fromEntries(Object.entries(old).filter(([name]) => name in urls)));
    const stops = Object.entries(urls).map(([name, url]) =>
      poll(url, everyMs, read, (answer) => setAnswers((old) => ({ ...old, [name]: { data: old[name]?.data, ...answer } }))),
    );
    return () => stops.forEach((stop) => stop());
  }, [JSON.stringify(urls), everyMs]);
  return answers;
}

/** Polls one address; nothing while it is null, and nothing of the address before. */
export function usePoll<T>(url: string | null, everyMs: number, read: (response: Response) => Promise<T> = asJson): Answer<T> {
  return usePolls(url === null ? {} : { [url]: url }, everyMs, read)[url ?? ""] ?? {};
}
