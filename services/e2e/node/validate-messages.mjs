// validate-messages ai5|ai6|ai7: reads {"messages":[ModelMessage…],"uiMessages":[UIMessage…]}
// on stdin and validates them with that version of the AI SDK. It prints one line
// {"kind","index","ok","error"} for each message; the exit code is 1 if one is invalid.
import { text } from 'node:stream/consumers';
import { EXIT, Failure, run } from './lib/exit.mjs';
import { needNewerNode } from './lib/node.mjs';
import { reasons } from './lib/reasons.mjs';

const VERSIONS = { ai5: false, ai6: false, ai7: true }; // whether it needs the newer Node

async function validate(version, { messages = [], uiMessages = [] }) {
  const sdk = await import(version);
  const verdicts = messages.map((message, index) => {
    const { success, error } = sdk.modelMessageSchema.safeParse(message);
    return { kind: 'model', index, ok: success, error: success ? undefined : reasons(error) };
  });
  for (const [index, message] of uiMessages.entries()) {
    const { success, error } = await sdk.safeValidateUIMessages({ messages: [message] });
    verdicts.push({ kind: 'ui', index, ok: success, error: success ? undefined : reasons(error) });
  }
  return verdicts;
}

await run(async () => {
  const [version, ...more] = process.argv.slice(2);
  if (!(version in VERSIONS) || more.length > 0) throw new Failure(EXIT.usage, `usage: validate-messages ${Object.keys(VERSIONS).join('|')} < messages.json`);
  if (VERSIONS[version]) await needNewerNode(version);
  let input;
  try {
    input = JSON.parse(await text(process.stdin));
  } catch (error) {
    throw new Failure(EXIT.usage, `stdin is no JSON: ${error.message}`);
  }
  const verdicts = await validate(version, input);
  if (verdicts.length === 0) throw new Failure(EXIT.failed, 'there is no message to validate');
  for (const verdict of verdicts) process.stdout.write(`${JSON.stringify(verdict)}\n`);
  return verdicts.every((v) => v.ok) ? EXIT.ok : EXIT.failed;
});
