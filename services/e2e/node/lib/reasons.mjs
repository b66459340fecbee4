/**
 * Summarizes a validation error of zod: of a union only the branches that match the message's role
 * and the part's type.
 */
export function reasons(error) {
  const issues = error?.issues ?? error?.cause?.issues;
  return issues ? [...new Set(issues.flatMap((i) => explain(i, [])))].join('; ') : String(error?.message).slice(0, 500);
}

function explain(issue, above) {
  const path = [...above, ...issue.path];
  const branches = (issue.errors ?? []).filter((branch) => !branch.some(isOther));
  if (branches.length === 0) return [`${path.join('.') || 'message'}: ${issue.message}`];
  return branches.flatMap((branch) => branch.flatMap((i) => explain(i, path)));
}

/** Whether an issue says that this branch is for another role, type or state. */
function isOther(issue) {
  return issue.path.length === 1 && ['role', 'type', 'state'].includes(issue.path[0]) && ['invalid_value', 'invalid_format'].includes(issue.code);
}
