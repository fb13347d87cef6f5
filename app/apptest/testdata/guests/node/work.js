'use strict';
// Files, a child process and worker threads, with node's own modules only.
const assert = require('node:assert');
const { execFileSync } = require('node:child_process');
const crypto = require('node:crypto');
const fs = require('node:fs');
const { Worker, isMainThread, parentPort, workerData } = require('node:worker_threads');

if (!isMainThread) {
  parentPort.postMessage(crypto.createHash('sha256').update(workerData).digest('hex'));
} else {
  const texts = ['a', 'b', 'c'];
  const workers = texts.map((text) => new Promise((resolve, reject) => {
    const worker = new Worker(__filename, { workerData: text });
    worker.once('message', resolve);
    worker.once('error', reject);
  }));
  Promise.all(workers).then((sums) => {
    texts.forEach((text, i) => assert.strictEqual(sums[i], crypto.createHash('sha256').update(text).digest('hex')));
    const child = execFileSync(process.execPath, ['-p', '6 * 7'], { stdio: ['ignore', 'pipe', 'inherit'] });
    fs.mkdirSync('made');
    fs.writeFileSync('made/by-node', child);
    console.log('workers', sums.length, 'child', child.toString().trim());
  });
}
