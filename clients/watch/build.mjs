// Bundles the page, and writes the digest of its sources into the first line of page.js, which docs/check_page.py compares.
import { execFileSync } from "node:child_process";
import { copyFileSync, readFileSync, writeFileSync } from "node:fs";
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
// Their licences ask to go where their code goes.
const licenses = ["preact", "uplot"].map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8")}`);
writeFileSync(`${page}/licenses.txt`, licenses.join("\n"));
