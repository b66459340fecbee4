// Finds the Chromium that tests drive. As a program it prints the path of one that runs
// here, or says why there is none and exits with 1; with --system it looks for an
// installed one only.
import { execFileSync } from 'node:child_process'
import { existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'

const here = path.dirname(fileURLToPath(import.meta.url))
const unpacked = path.join(here, 'node_modules', '.chromium')

function system() {
  return [
    process.env.CHROMIUM, '/usr/bin/chromium', '/usr/bin/google-chrome', '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome',
  ].find(p => p && existsSync(p))
}

// Unpacks the package's archives beside it. They hold, for machines without them, the
// libraries and fonts that Chromium needs. The package itself would unpack into the
// system's temporary folder, and the libraries in a cloud function only.
async function unpack() {
  const { TMPDIR, AWS_EXECUTION_ENV } = process.env
  const dir = mkdtempSync(`${unpacked}-`)
  try {
    Object.assign(process.env, { TMPDIR: dir, AWS_EXECUTION_ENV: 'AWS_Lambda_nodejs20.x' })
    const { default: chromium } = await import('@sparticuz/chromium')
    await chromium.executablePath()
  } finally {
    for (const [name, value] of Object.entries({ TMPDIR, AWS_EXECUTION_ENV })) {
      if (value === undefined) delete process.env[name]
      else process.env[name] = value
    }
  }
  writeFileSync(path.join(dir, 'fonts', 'fonts.conf'), `<?xml version="1.0"?>
<!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir prefix="relative">.</dir></fontconfig>
`)
  try {
    renameSync(dir, unpacked)
  } catch (e) {
    rmSync(dir, { recursive: true })
    if (!existsSync(unpacked)) throw e // else another process was faster
  }
}

// Returns how to start Chromium: { executablePath, env }. Without one it throws an
// error that says what to do.
export async function find() {
  const installed = system()
  if (installed) return { executablePath: installed, env: process.env }
  const hint = 'install Chromium (apt-get install chromium), or let CHROMIUM name it'
  if (!existsSync(path.join(here, 'node_modules', '@sparticuz'))) {
    throw new Error(`There is no Chromium here, and npm has not brought one (Linux on x64 only): ${hint}.`)
  }
  if (!existsSync(unpacked)) await unpack()
  const found = {
    executablePath: path.join(unpacked, 'chromium'),
    env: { ...process.env, LD_LIBRARY_PATH: path.join(unpacked, 'al2023', 'lib'), FONTCONFIG_PATH: path.join(unpacked, 'fonts') },
  }
  try {
    execFileSync(found.executablePath, ['--version'], { env: found.env, stdio: 'pipe' })
  } catch (e) {
    throw new Error(`The Chromium that npm brought does not run here: ${hint}. ${e.message}`)
  }
  return found
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  if (process.argv[2] === '--system') process.exit(system() ? 0 : 1)
  try {
    console.log((await find()).executablePath)
  } catch (e) {
    console.error(e.message)
    process.exit(1)
  }
}
