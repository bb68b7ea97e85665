// Bundles the page, and writes the digest of its sources into the first line of page.js, which docs/check_page.py compares.
import { execFileSync } from "node:child_process";
import { copyFileSync } from "node:fs";
import { build } from "esbuild";

const page = "../minefleet/watch/page";
const digest = execFileSync("python3", ["../../docs/check_page.py", "--print"], { encoding: "utf8" }).trim();
await build({
  entryPoints: { page: "src/main.tsx" },
  outdir: page,
  bundle: true,
  minify: true,
  target: "es2023",
  legalComments: "inline",
  banner: { js: `// sources sha256 ${digest}` },
});
copyFileSync("src/index.html", `${page}/index.html`);
