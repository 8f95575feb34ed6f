// Runs `ringproof plan` in Python beside the page; see docs/browser/entry.py.
import { loadPyodide } from "./planner/pyodide.mjs";

const folder = new URL("./planner/", import.meta.url).href;

async function start() {
  const [python, ...archives] = await Promise.all([
    loadPyodide({ indexURL: folder, lockFileURL: `${folder}pyodide-lock.json` }),
    ...["ringproof.zip", "compiled.whl"].map(async (name) => {
      const response = await fetch(folder + name);
      if (!response.ok) throw new Error(`${name}: ${response.status}`);
      return response.arrayBuffer();
    }),
  ]);
  for (const archive of archives) python.unpackArchive(archive, "zip", { extractDir: "/planner" });
  python.runPython("import sys; sys.path.insert(0, '/planner')");
  return python.pyimport("entry");
}

const entry = start();
entry.then(
  () => postMessage({ ready: true }),
  (error) => postMessage({ failed: String(error) }),
);

addEventListener("message", async ({ data }) => {
  const { id, request } = data;
  try {
    postMessage({ id, answer: (await entry).answer(JSON.stringify(request)) });
  } catch (error) {
    postMessage({ id, answer: JSON.stringify({ error: String(error) }) });
  }
});
