// How the programs say how it went.
export const EXIT = {
  ok: 0, // saw what it waited for
  failed: 1, // refused, invalid, or out of time
  usage: 2,
  node: 3, // a newer Node is needed and none was found
  cut: 4, // the connection broke in the middle of the stream
  ended: 5, // the stream ended cleanly without what was waited for
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
