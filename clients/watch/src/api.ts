// The server's JSON, as docs/watch.md has it.

export interface Run {
  id: string; directory: string; is_live: boolean; updated_s: number; iteration: number | null;
  env_steps: number | null; episode_return_mean: number | null; env: string; wall_s: number | null;
}
export interface RunDetails {
  id: string; directory: string; config: Record<string, unknown>; schema: unknown; has_pictures: boolean;
  tasks: string[]; keys: string[]; files: Record<string, string>;
}
export type Axis = "env_steps" | "wall_s" | "iteration";
export interface Curves extends Record<Axis, number[]> {
  columns: Record<string, (number | null)[]>; total: number; is_thinned: boolean;
}
export interface Place { iteration: number; env_steps?: number; wall_s?: number }
export interface Marks {
  evaluations?: (Place & { policy_version: number; return_mean: number | null })[];
  checkpoints?: (Place & { name: string; bytes: number })[]; restarts?: (Place & { what: string })[];
  config_changes?: (Place & { keys: { key: string; old: unknown; new: unknown }[] })[];
}
export interface Role {
  name: string; pid: number; address: string; state: string; detail: string; uptime_s: number;
  stats: Record<string, number>;
}
type Shares = Record<string, number>;
export interface Status {
  roles: Role[]; metrics: Record<string, unknown>;
  bottleneck: { stage?: string | null; sentence?: string; slots?: Shares; loop?: Shares };
}
export interface Failure { kind: string; text: string; age_s: number; has_frame: boolean }
export interface Slot {
  slot: number; state: string; reason: string; age_s: number; task: string; episode_steps: number;
  episode_return: number; version: number; value: number | null; action: string; step_s: number | null;
  failures: number; last_failure: Failure | null; trained_share: number | null; dropped_steps: number | null; stream: string;
}
export interface Slots { actors: { name: string; error: string | null; slots: Slot[] }[] }
export interface Failures {
  by_kind: Record<string, number>;
  episodes: { iteration: number; task: string; failure: string; stream: string; length: number; episode_return: number }[];
  slots: (Failure & { actor: string; slot: number; failures: number })[];
}
export interface Videos {
  videos: { name: string; bytes: number; written_s: number; version?: number; episode_return?: number }[];
}
export interface Difference { keys: { key: string; this: unknown; other: unknown }[] }
export interface Machine {
  cores: number; cpu_share: number; memory_bytes: number; memory_used_bytes: number; disk_bytes: number; disk_free_bytes: number;
  gpus: { name: string; memory_bytes: number; memory_used_bytes: number; use_share: number | null }[];
}

/** The address of a run's resource; each part is escaped, since runs, logs and videos have any name. */
export const at = (run: string, ...parts: (string | number)[]): string =>
  ["api/runs", ...[run, ...parts].map((part) => encodeURIComponent(part))].join("/");

/** A refusal of the server, or its silence (status 0). */
export class ApiError extends Error {
  constructor(message: string, readonly status: number) {
    super(message);
  }
}

const TIMEOUT_MS = 10_000;

/** Gets a resource; throws an ApiError with the server's own sentence. */
export async function get(url: string, signal: AbortSignal): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(url, { signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]) });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ApiError("minefleet watch does not answer. Is it still running? This page goes on by itself.", 0);
  }
  if (answer.ok) return answer;
  const body: unknown = await answer.json().catch(() => null);
  const known = body && typeof body === "object" && "error" in body ? String(body.error) : "";
  if (answer.status === 401) throw new ApiError("The token is missing or wrong: open the address that minefleet watch printed.", 401);
  throw new ApiError(known || `The server answers ${answer.status}.`, answer.status);
}
