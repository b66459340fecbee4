// The exit codes of the programs.
export const EXIT = {
  ok: 0, // saw the awaited event
  failed: 1, // refused, invalid, or timed out
  usage: 2,
  node: 3, // a newer Node is required and was not found
  cut: 4, // the connection broke in the middle of the stream
  ended: 5, // the stream ended cleanly without the awaited event
};

/** An end with an exit code and a sentence for stderr. */
export class Failure extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

/** Runs a program to its exit code. */
export async function run(main) {
  try {
    process.exit((await main()) ?? EXIT.ok);
  } catch (error) {
    process.stderr.write(`${error instanceof Failure ? error.message : error?.stack}\n`);
    process.exit(error instanceof Failure ? error.code : EXIT.failed);
  }
}
